"""Compensation outside deep nets, as scikit-learn estimators: clustering, SVM, regression, registration, many views."""

from compensate.estimators.kmeans import LambdaPath, RobustKMeans

__all__ = ["LambdaPath", "RobustKMeans"]
