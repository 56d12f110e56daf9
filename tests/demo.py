"""``make demo``: serve the default bundle, classify a few texts through the client, explain one, stop."""

import json
import subprocess
import sys
import time

from sentiment.client import Client

TEXTS = (
    "a gripping, beautifully shot film",
    "two hours of my life I will never get back",
    "The first half drags, but the ending is one of the best I have seen in years.",
    "I did not really enjoy this movie.",
    "The train leaves at nine from platform two.",
)
EXPLAINED = "The acting was not good at all, but I loved the soundtrack."


def main() -> int:
    """Run the demo; returns the server's exit code."""
    command = [
        sys.executable,
        "-m",
        "sentiment",
        "serve",
        "--grpc-listen",
        "127.0.0.1:0",
        "--http-listen",
        "127.0.0.1:0",
        "--drain-wait-s",
        "0",
    ]
    begun = time.monotonic()
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    lines = (json.loads(line) for line in server.stderr)
    ready = next((line for line in lines if line["event"] in ("ready", "cannot_serve")), {"event": "nothing"})
    if ready["event"] != "ready":
        print(f"the server did not start: {ready}", file=sys.stderr)
        return server.wait(10) or 1
    print(f"{ready['model']} ({ready['precision']}) is ready on {ready['grpc']} after {time.monotonic() - begun:.1f} s\n")
    try:
        with Client(str(ready["grpc"])) as client:
            for text in TEXTS:
                answer = client.classify(text)
                bar = "#" * round(20 * answer.score)
                undecided = "  undecided" if answer.abstain else ""
                print(f"{answer.label:9} {answer.score:.3f} {bar:20}  {text}{undecided}")
                print(f"{'':37}{answer.tokens} tokens, {answer.timing.total_s * 1e3:.1f} ms in the server")
        print(f"\nsentiment explain --counterfactuals {EXPLAINED!r}\n", flush=True)
        explained = [sys.executable, "-m", "sentiment", "explain", "--counterfactuals", "--target", str(ready["grpc"]), EXPLAINED]
        subprocess.run(explained, check=True, timeout=60)
    finally:
        server.terminate()
    return server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
