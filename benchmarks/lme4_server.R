# Fits lme4 and glmmTMB models one after the other, for benchmarks/grouped_peers.py.
#
# A line of the input is a folder, the number of rows, how many of them (the first) are for
# training, and a formula. rows.bin in the folder holds y, the task and the features as columns of
# doubles; the predictions of all other rows go to predictions.bin. The answer is "done" with the
# seconds of processor time, or the message of an error.
suppressMessages(library(lme4))
control <- lmerControl(
  calc.derivs = FALSE, # changes no estimate
  check.nobs.vs.nlev = "ignore", check.nobs.vs.rankZ = "ignore", check.nobs.vs.nRE = "ignore"
)

fit <- function(folder, n, n_train, formula) {
  began <- sum(proc.time()[1:2])
  file <- file.path(folder, "rows.bin")
  rows <- matrix(readBin(file, "double", file.size(file) / 8), nrow = n)
  d <- ncol(rows) - 2
  table <- as.data.frame(rows)
  names(table) <- c("y", "g", if (d > 0) paste0("x", seq_len(d)))
  table$g <- factor(table$g)
  train <- seq_len(n_train)
  # diag() around random effects is glmmTMB's.
  fitted <- if (grepl("diag(", formula, fixed = TRUE)) {
    function() glmmTMB::glmmTMB(as.formula(formula), table[train, ], REML = TRUE)
  } else {
    function() lmer(as.formula(formula), table[train, ], REML = TRUE, control = control)
  }
  model <- suppressWarnings(suppressMessages(fitted()))
  predictions <- predict(model, table[-train, ], allow.new.levels = TRUE)
  writeBin(as.numeric(predictions), file.path(folder, "predictions.bin"))
  paste("done", sum(proc.time()[1:2]) - began)
}

input <- file("stdin", "r")
while (length(line <- readLines(input, 1)) > 0) {
  job <- strsplit(line, "\t")[[1]]
  answer <- tryCatch(
    fit(job[1], as.integer(job[2]), as.integer(job[3]), job[4]),
    error = function(problem) paste("error:", gsub("\n", " ", conditionMessage(problem))))
  cat(answer, "\n", sep = "")
  flush(stdout())
}
