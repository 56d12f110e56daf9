"""Run by the Python that has tritonclient: ``triton_admin.py ADMIN_PORT TOKEN``. Exchanges models and prints the answers."""

import json
import sys

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def main(target: str, token: str) -> None:
    client = triton.InferenceServerClient(target)
    authorized = {"authorization": f"Bearer {token}"}

    def states() -> dict[str, str]:
        index = client.get_model_repository_index(headers=authorized, as_json=True)["models"]
        return {f"{one['name']}/{one['version']}": one.get("state", "") for one in index if one["name"] == "tiny"}

    try:
        client.get_model_repository_index()
        stranger = "OK"
    except InferenceServerException as error:
        stranger = str(error.status())
    before = states()
    client.load_model("tiny/2", headers=authorized)
    loaded = states()
    client.unload_model("tiny/1", headers=authorized)
    print(json.dumps({"stranger": stranger, "before": before, "loaded": loaded, "unloaded": states()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
