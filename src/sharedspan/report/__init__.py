"""The HTML report, the plots of fitted models and the demonstration."""
