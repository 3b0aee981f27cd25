"""The route to compare with: FastAPI as everybody writes it, the same messages, and nothing behind them.

`python -m benchmarks.empty_route` reads an answer of the real service (JSON) on stdin and gives it to every request.
"""

import json
import sys

import uvicorn
from fastapi import FastAPI

from umpteen.service.schemas import PredictRequest, PredictResponse
from umpteen.service.server import listening_socket, uvicorn_settings
from umpteen.service.settings import ServiceSettings


def empty_app(answer: PredictResponse) -> FastAPI:
    """One route: the request is validated, the response serialised."""
    app = FastAPI()

    @app.post("/predict")
    async def predict(message: PredictRequest) -> PredictResponse:
        return answer

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ok"}

    return app


def main() -> None:
    answer = PredictResponse.model_validate(json.load(sys.stdin))
    with listening_socket("127.0.0.1", 0) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", file=sys.stderr, flush=True)
        server = uvicorn.Server(uvicorn.Config(empty_app(answer), **uvicorn_settings(ServiceSettings())))
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
