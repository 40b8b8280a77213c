# Fits mixed models of published tables and stores what R says of them.
#
#   python tests/formula/reference.py FOLDER
#   Rscript tests/formula/r_values.R FOLDER tests/formula/r_values.json
#
# Linear mixed models are lme4's, with the tests of lmerTest; families are glmmTMB's, and glmer's
# where its approximation is another one. lme4 stops early: its variance parameters are polished
# by Newton's steps, and glmer's tolerances are small, so that all digits that are stored hold.
suppressMessages({
  library(lme4)
  library(lmerTest)
  library(glmmTMB)
})
arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]
output <- arguments[2]
levels_of <- jsonlite::fromJSON(file.path(folder, "levels.json"))

# ---- tables --------------------------------------------------------------------------------------

# Slopes of schools that are nested within districts, and whose names are used again in each.
simulate_nested <- function() {
  set.seed(20240611)
  schools <- c(4, 6, 3, 5, 2, 6, 4, 5, 3, 6)
  pairs <- do.call(rbind, lapply(seq_along(schools), function(d) {
    data.frame(d = sprintf("d%02d", d), s = paste0("s", seq_len(schools[d])))
  }))
  rows <- pairs[rep(seq_len(nrow(pairs)), sample(3:9, nrow(pairs), replace = TRUE)), ]
  school <- as.integer(factor(paste(rows$d, rows$s), unique(paste(rows$d, rows$s))))
  district <- as.integer(factor(rows$d))
  of_district <- matrix(rnorm(20), 10) %*% chol(matrix(c(1, .3, .3, .5), 2))
  of_school <- matrix(rnorm(2 * nrow(pairs)), ncol = 2) %*% chol(matrix(c(.6, -.2, -.2, .4), 2))
  x <- round(rnorm(nrow(rows), 1), 3)
  effects <- of_district[district, ] + of_school[school, ]
  y <- 2 + effects[, 1] + (1 + effects[, 2]) * x + rnorm(nrow(rows), sd = .7)
  data.frame(d = rows$d, s = rows$s, x = x, y = round(y, 4))
}

nested <- simulate_nested()

read_table <- function(name) {
  rows <- if (name == "nested") nested else read.csv(file.path(folder, paste0(name, ".csv")))
  for (column in names(levels_of[[name]])) {
    rows[[column]] <- factor(rows[[column]], levels_of[[name]][[column]])
  }
  text <- sapply(rows, is.character)
  rows[text] <- lapply(rows[text], factor)
  rows
}

# ---- what is stored ------------------------------------------------------------------------------

rounded <- function(x) signif(as.vector(x), 10)
array_of <- function(x) I(rounded(x))
matrix_of <- function(x) unname(signif(as.matrix(x), 10))

likelihood_of <- function(model) {
  log_likelihood <- logLik(model)
  list(
    log_likelihood = rounded(log_likelihood), deviance = rounded(-2 * log_likelihood),
    aic = rounded(AIC(model)), bic = rounded(BIC(model)),
    n_parameters = attr(log_likelihood, "df"), df_residual = df.residual(model),
    n_rows = nobs(model)
  )
}

fixed_of <- function(table, covariance) {
  last <- ncol(table)
  fixed <- data.frame(
    name = rownames(table), estimate = rounded(table[, 1]), std_error = rounded(table[, 2]),
    statistic = rounded(table[, last - 1]), p_value = rounded(table[, last])
  )
  if ("df" %in% colnames(table)) fixed$df <- rounded(table[, "df"])
  list(fixed = fixed, fixed_correlation = matrix_of(cov2cor(as.matrix(covariance))))
}

variances_of <- function(components) {
  lapply(names(components), function(group) {
    component <- components[[group]]
    list(
      group = group, names = I(colnames(component)),
      sd = array_of(attr(component, "stddev")),
      correlation = matrix_of(attr(component, "correlation"))
    )
  })
}

# Conditional modes of the first six levels of every group.
modes_of <- function(effects, counts) {
  long <- as.data.frame(effects, stringsAsFactors = FALSE)
  lapply(names(counts), function(group) {
    table <- if (inherits(effects, "ranef.glmmTMB")) effects$cond[[group]] else effects[[group]]
    shown <- head(rownames(table), 6)
    own <- long[long$grpvar == group, ]
    pick <- function(what) {
      matrix_of(sapply(colnames(table), function(term) {
        rows <- own[as.character(own$term) == term, ]
        rows[match(shown, as.character(rows$grp)), what]
      }))
    }
    list(
      group = group, n_levels = counts[[group]], names = I(colnames(table)), levels = I(shown),
      values = pick("condval"), std_errors = pick("condsd")
    )
  })
}

lme4_values <- function(model, coefficients) {
  residual_sd <- if (isLMM(model)) rounded(sigma(model)) else NULL
  c(
    likelihood_of(model), fixed_of(coefficients, vcov(model)),
    list(
      variances = variances_of(VarCorr(model)), residual_sd = residual_sd,
      singular = isSingular(model),
      scaled_residuals = array_of(quantile(residuals(model, "pearson", scaled = TRUE))),
      groups = modes_of(ranef(model, condVar = TRUE), as.list(ngrps(model))),
      fitted = array_of(head(fitted(model), 6))
    )
  )
}

# ---- fits ----------------------------------------------------------------------------------------

precise <- lmerControl(optCtrl = list(xtol_abs = 1e-10, ftol_abs = 1e-10))

# The optimum of lmer to all digits: Newton's steps from where it stops, if all variances are
# positive there.
polished <- function(formula, REML) {
  model <- lme4::lmer(formula, rows, REML = REML)
  deviance <- update(model, devFunOnly = TRUE)
  theta <- getME(model, "theta")
  if (!isSingular(model)) {
    for (step in 1:3) {
      slope <- numDeriv::grad(deviance, theta)
      theta <- theta - solve(numDeriv::hessian(deviance, theta), slope)
    }
    slope <- numDeriv::grad(deviance, theta)
    stopifnot(max(abs(slope)) < 1e-3, deviance(theta) < -2 * logLik(model) + 1e-8)
  }
  control <- lmerControl(optimizer = NULL, calc.derivs = FALSE)
  lmerTest::lmer(formula, rows, REML = REML, start = theta, control = control)
}

linear_fit <- function(formula, REML) {
  model <- suppressWarnings(polished(formula, REML))
  values <- lme4_values(model, coef(summary(model)))
  slopes <- diag(length(fixef(model)))[-1, , drop = FALSE]
  if (nrow(slopes) > 1) { # all coefficients but the intercept at once
    test <- contestMD(model, slopes)
    values$joint_test <- list(
      numerator = test$NumDF, denominator = rounded(test$DenDF), f = rounded(test$`F value`),
      p_value = rounded(test$`Pr(>F)`)
    )
  }
  list(model = model, values = values)
}

linear <- function(name, formula, profile = FALSE, held_out = NULL) {
  rows <<- read_table(name)
  entry <- list(table = name, formula = deparse1(formula))
  if (!is.null(held_out)) {
    everything <- rows
    entry$held_out <- rows_to_predict(everything, held_out)
    rows <<- everything[everything[[held_out$column]] != held_out$level, ]
  }
  for (method in c("reml", "ml")) {
    fit <- linear_fit(formula, REML = method == "reml")
    entry[[method]] <- fit$values
    if (!is.null(held_out)) {
      new <- everything[entry$held_out$rows + 1, ]
      entry[[method]]$predictions <- array_of(predict(fit$model, new, allow.new.levels = TRUE))
      entry[[method]]$mean_predictions <- array_of(predict(fit$model, new, re.form = NA))
    }
  }
  if (profile) entry$profile_intervals <- profile_of(formula)
  entry
}

# 15 rows spread over the rows of the fit, then the first 5 of the group that is left out.
rows_to_predict <- function(everything, held_out) {
  new <- which(everything[[held_out$column]] == held_out$level)
  known <- setdiff(seq_len(nrow(everything)), new)
  chosen <- c(known[round(seq(1, length(known), length.out = 15))], head(new, 5))
  c(held_out, list(rows = I(chosen - 1)))
}

profile_of <- function(formula) {
  model <- lme4::lmer(formula, rows, REML = FALSE, control = precise)
  intervals <- suppressWarnings(confint(profile(model, signames = FALSE)))
  data.frame(
    name = rownames(intervals), lower = rounded(intervals[, 1]), upper = rounded(intervals[, 2]),
    row.names = NULL
  )
}

glmmTMB_values <- function(formula, family, REML = FALSE) {
  control <- glmmTMBControl(optCtrl = list(iter.max = 1e4, eval.max = 1e4, rel.tol = 1e-14))
  model <- suppressWarnings(glmmTMB(formula, rows, family, REML = REML, control = control))
  # Differences over steps that suit the coefficients, which those of glmmTMB do not.
  information <- numDeriv::jacobian(model$obj$gr, model$fit$par)
  information <- (information + t(information)) / 2
  dimnames(information) <- list(names(model$fit$par), names(model$fit$par))
  model$sdr <- TMB::sdreport(model$obj, model$fit$par, information, getJointPrecision = REML)
  components <- VarCorr(model)$cond
  counts <- lapply(ranef(model)$cond, nrow)
  values <- c(
    likelihood_of(model),
    fixed_of(summary(model)$coefficients$cond, vcov(model)$cond),
    list(
      variances = variances_of(components), groups = modes_of(ranef(model), counts),
      fitted = array_of(head(fitted(model), 6))
    )
  )
  if (family == "nbinom2") values$dispersion <- rounded(sigma(model))
  values
}

glmer_values <- function(formula, family, nAGQ = 1) {
  control <- glmerControl(optimizer = "bobyqa", tolPwrss = 1e-13, optCtrl = list(rhoend = 1e-8))
  model <- suppressWarnings(glmer(formula, rows, family, nAGQ = nAGQ, control = control))
  lme4_values(model, coef(summary(model)))
}

generalized <- function(name, formula, family, glmer = FALSE, quadrature = 0, reml = FALSE) {
  rows <<- read_table(name)
  entry <- list(table = name, formula = deparse1(formula), family = family)
  entry$glmmTMB <- glmmTMB_values(formula, family)
  if (reml) entry$glmmTMB_reml <- glmmTMB_values(formula, family, REML = TRUE)
  if (glmer) entry$glmer <- glmer_values(formula, family)
  if (quadrature) entry$glmer_quadrature <- glmer_values(formula, family, quadrature)
  entry
}

# ---- models --------------------------------------------------------------------------------------

contraception <- use ~ age + I(age^2) + urban + livch + (1 | urban:district)
epileptics <- y ~ lbase * trt + lage + V4 + (1 | subject)
rows <- NULL
models <- list(
  "sleepstudy" = linear("sleepstudy", Reaction ~ Days + (Days | Subject), profile = TRUE),
  "sleepstudy uncorrelated" =
    linear("sleepstudy", Reaction ~ Days + (Days || Subject), profile = TRUE),
  "sleepstudy intercept" =
    linear("sleepstudy", Reaction ~ Days + (1 | Subject), profile = TRUE),
  "Dyestuff" = linear("Dyestuff", Yield ~ 1 + (1 | Batch), profile = TRUE),
  "Dyestuff2" = linear("Dyestuff2", Yield ~ 1 + (1 | Batch)),
  "Pastes" = linear("Pastes", strength ~ 1 + (1 | batch / cask), profile = TRUE),
  "Penicillin" = linear("Penicillin", diameter ~ 1 + (1 | plate) + (1 | sample), profile = TRUE),
  "Orthodont" = linear("Orthodont", distance ~ age * Sex + (age | Subject)),
  "Exam" = linear("Exam", normexam ~ standLRT + (standLRT | school)),
  "Exam covariates" =
    linear("Exam", normexam ~ standLRT + sex + schgend + (standLRT | school)),
  "Hsb82" = linear("Hsb82", mAch ~ cses + (cses | school)),
  "Chem97" = linear("Chem97", score ~ gcsecnt + (gcsecnt | school)),
  "MathAchieve" = linear(
    "MathAchieve", MathAch ~ SES * Sex + (SES | School),
    held_out = list(column = "School", level = 1224)
  ),
  "gapminder" = linear(
    "gapminder", lifeExp ~ log(gdpPercap) + I(year - 1952) + (I(year - 1952) | country),
    held_out = list(column = "country", level = "Norway")
  ),
  "nested" = linear("nested", y ~ x + (1 + x | d / s)),
  "nested intercept" = linear("nested", y ~ x + (1 | d / s), profile = TRUE),
  "cbpp" = generalized(
    "cbpp", cbind(incidence, size - incidence) ~ factor(period) + (1 | herd), "binomial",
    glmer = TRUE, quadrature = 25, reml = TRUE
  ),
  "Contraception" =
    generalized("Contraception", contraception, "binomial", glmer = TRUE, quadrature = 25),
  "Contraception slopes" = generalized(
    "Contraception", update(contraception, . ~ . - (1 | urban:district) + (urban | district)),
    "binomial", glmer = TRUE
  ),
  "epil poisson" = generalized("epil", epileptics, "poisson", glmer = TRUE),
  "epil nbinom2" = generalized("epil", epileptics, "nbinom2"),
  "grouseticks" =
    generalized("grouseticks", TICKS ~ factor(YEAR) + HEIGHT + (1 | BROOD), "nbinom2")
)

# ---- comparisons of models -----------------------------------------------------------------------

compared <- function(REML) {
  rows <<- read_table("sleepstudy")
  small <- polished(Reaction ~ Days + (1 | Subject), REML)
  large <- polished(Reaction ~ Days + (Days | Subject), REML)
  table <- anova(small, large, refit = FALSE)
  list(
    models = I(c("sleepstudy intercept", "sleepstudy")), n_parameters = I(table$npar),
    aic = array_of(table$AIC), bic = array_of(table$BIC),
    log_likelihood = array_of(table$logLik), deviance = array_of(table$deviance),
    chi_squared = rounded(table$Chisq[2]), df = table$Df[2],
    p_value = rounded(table$`Pr(>Chisq)`[2])
  )
}

without_each_effect <- function() {
  rows <<- read_table("sleepstudy")
  model <- lmerTest::lmer(Reaction ~ Days + (Days | Subject), rows, control = precise)
  table <- ranova(model)
  list(
    terms = I(rownames(table)), n_parameters = I(table$npar),
    log_likelihood = array_of(table$logLik), aic = array_of(table$AIC),
    chi_squared = array_of(table$LRT), df = I(table$Df), p_value = array_of(table$`Pr(>Chisq)`)
  )
}

packages <- c("lme4", "lmerTest", "glmmTMB", "TMB", "Matrix", "numDeriv")
versions <- sapply(packages, function(name) as.character(packageVersion(name)))
json <- jsonlite::toJSON(
  list(
    versions = c(list(R = as.character(getRversion())), as.list(versions)),
    models = models,
    comparisons = list(
      ml = compared(FALSE), reml = compared(TRUE), ranova = without_each_effect()
    ),
    data = list(nested = as.list(nested))
  ),
  auto_unbox = TRUE, digits = NA, na = "null", null = "null", pretty = 1
)
writeLines(gsub("\\s+(?=[^\\[\\]{}]*\\])", " ", json, perl = TRUE), output) # arrays in one line
