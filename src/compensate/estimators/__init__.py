"""Compensation as scikit-learn estimators: any method as a classifier; clustering, SVM, regression, registration, views."""

from compensate.estimators.classifier import CompensatedClassifier
from compensate.estimators.kmeans import LambdaPath, RobustKMeans
from compensate.estimators.multiview import MultiViewRobustClustering
from compensate.estimators.registration import RobustICP
from compensate.estimators.regression import ShiftRegressor
from compensate.estimators.svm import SlackSVC

__all__ = ["CompensatedClassifier", "LambdaPath", "MultiViewRobustClustering", "RobustICP", "RobustKMeans",
           "ShiftRegressor", "SlackSVC"]  # fmt: skip
