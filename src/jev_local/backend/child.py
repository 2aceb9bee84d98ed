"""`python -m jev_local.backend.child OPTIONS`: the llama-server of the xllamacpp wheel, in this process.

OPTIONS is a JSON object with the fields of `ServerOptions`. The process serves until a signal ends it.

No signal handler is installed, on purpose. Python runs handlers in the main thread between two bytecodes, and while the
server is evaluating a prompt that took 58 seconds; with the default disposition the kernel ends the process at once.
Nothing is lost: this process keeps only what can be evaluated again.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from jev_local.backend.embedded import CORS_ORIGIN, ServerOptions

AUTO_LAYERS = {"auto": -1, "all": -2}


def parameters(options: ServerOptions) -> Any:
    """The wheel's CommonParams for these options: attributes where the binary has flags."""
    import xllamacpp  # noqa: PLC0415  # 30 MB of native code, and absent where LLAMA_SERVER is used

    devices = xllamacpp.get_device_info()
    has_gpu = any("GPU" in str(device["type"]) for device in devices)
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.context + options.room_for_chats
    params.n_parallel = options.slots
    params.kv_unified = True
    if options.chat_slots:
        params.kv_unified_per_slot = options.slot_context
        params.model_tags = set(options.tags)
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.slot_save_path = options.slot_dir.rstrip("/") + "/"  # without it, folder and file name are glued together
    params.endpoint_slots = True
    params.use_jinja = True
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.ui = False
    params.cors_origins = CORS_ORIGIN
    params.cors_origins_explicit = True
    batches = options.batch_sizes(has_gpu=has_gpu)
    if batches is not None:
        params.n_batch, params.n_ubatch = batches
    if options.mmproj is not None:
        params.mmproj.path = options.mmproj
    if options.threads is not None:
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
    if options.gpu_layers is not None:
        params.n_gpu_layers = AUTO_LAYERS.get(options.gpu_layers) or int(options.gpu_layers)
    return params


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler is one too many here
    import xllamacpp  # noqa: PLC0415  # after the signal, which may come while the library is loading

    try:
        server = xllamacpp.Server(parameters(ServerOptions(**json.loads(argv[0]))))
    except RuntimeError as error:
        print(f"llama-server: {error}", file=sys.stderr)
        return 1
    while server is not None:  # holds the reference: the server ends with its object
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
