"""The methods that compute explanations. Pure."""
