"""Names of the services and their methods, as used on the wire, in metrics and in spans."""

from sentiment.oip import inference_pb2 as oip
from sentiment.v1 import sentiment_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["SentimentService"].full_name
OIP_SERVICE = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
OIP_METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelInfer")
METHODS = ("Classify", "ClassifyBatch", "ClassifyStream", "Explain", "ListModels", "GetModel", "Feedback", *OIP_METHODS)


def path_of(method: str) -> str:
    """A method's full name, such as sentiment.v1.SentimentService/Classify."""
    return f"{OIP_SERVICE if method in OIP_METHODS else SERVICE}/{method}"
