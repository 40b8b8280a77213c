"""The mixed model: marginal likelihood, search over covariances, posterior."""
