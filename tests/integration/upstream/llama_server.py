"""llama.cpp's own HTTP server as a process: `llama_server.py model.gguf` prints its URL and serves until stdin closes."""

import sys

import xllamacpp

SLOTS = 2
CONTEXT_PER_SLOT = 16_384


def main(model: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT_PER_SLOT
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.cpuparams.n_threads = 1
    params.n_gpu_layers = 0
    params.fit_params = False
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
