"""The mixed model: marginal likelihood, search over covariances, posterior."""

LARGEST_RANK = 15  # of the directions that a search considers
