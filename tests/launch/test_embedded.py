import json
from pathlib import Path

import pytest
from xllamacpp import llama_flash_attn_type

from jev_local.backend.child import parameters
from jev_local.backend.dialect import parts_of
from jev_local.backend.embedded import ServerOptions, native_command, server_environment, wheel_command


def options(**environment: str) -> ServerOptions:
    return ServerOptions.from_environment(
        environment, model=Path("/m/x.gguf"), mmproj=None, port=8097, slot_dir=Path("/c/slots")
    )


def test_defaults() -> None:
    chosen = options()
    assert (chosen.host, chosen.context, chosen.parallel) == ("127.0.0.1", 8192, 4)
    assert (chosen.batch, chosen.threads, chosen.gpu_layers, chosen.gpu_device) == (None, None, None, None)


def test_the_environment_is_heard_and_empty_means_default() -> None:
    sizes = {"CTX_SIZE": "16384", "PARALLEL": "2", "BATCH_SIZE": "256", "THREADS": "3"}
    chosen = options(**sizes, GPU_LAYERS="all", GPU_DEVICE="CUDA0")
    assert (chosen.context, chosen.parallel, chosen.batch, chosen.threads) == (16384, 2, 256, 3)
    assert (chosen.gpu_layers, chosen.gpu_device) == ("all", "CUDA0")
    assert options(CTX_SIZE="", PARALLEL="", GPU_LAYERS="") == options()


@pytest.mark.parametrize("name", ["CTX_SIZE", "PARALLEL", "BATCH_SIZE", "THREADS"])
@pytest.mark.parametrize("value", ["0", "-1", "8k", "1.5", " "])
def test_a_bad_number_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        options(**{name: value})


def test_bad_gpu_layers_are_named() -> None:
    with pytest.raises(ValueError, match="GPU_LAYERS"):
        options(GPU_LAYERS="some")


@pytest.mark.parametrize(
    ("environment", "gpu", "sizes"),
    [
        ({}, False, (128, 128)),
        ({}, True, None),
        ({"GPU_LAYERS": "0"}, True, (128, 128)),
        ({"GPU_DEVICE": "none"}, True, (128, 128)),
        ({"GPU_LAYERS": "20"}, False, (128, 128)),
        ({"BATCH_SIZE": "64"}, True, (64, 64)),
        ({"BATCH_SIZE": "2048"}, False, (2048, 512)),
    ],
)
def test_the_batch_is_small_unless_layers_are_on_a_gpu(
    environment: dict[str, str], gpu: bool, sizes: tuple[int, int] | None
) -> None:
    assert options(**environment).batch_sizes(has_gpu=gpu) == sizes


def test_the_native_command_carries_every_option() -> None:
    chosen = options(THREADS="2", GPU_LAYERS="0", GPU_DEVICE="none")
    argv = native_command(Path("/bin/llama-server"), chosen, has_gpu=False)
    line = " ".join(argv)
    assert argv[0] == "/bin/llama-server"
    for part in (
        "--model /m/x.gguf --alias x",
        "--host 127.0.0.1",
        "--port 8097",
        "--ctx-size 16384 --parallel 6 --kv-unified",
        "--kv-unified-per-slot 8192",
        "--tags jev-decisions-8192,jev-chats-8192",
        "--flash-attn on",
        "--slot-save-path /c/slots",
        "--cache-ram 0 --no-cache-idle-slots",
        "--cors-origins http://127.0.0.1",
        "--batch-size 128 --ubatch-size 128",
        "--threads 2",
        "--gpu-layers 0",
        "--device none",
    ):
        assert part in line
    assert "--mmproj" not in line
    assert "--batch-size" not in native_command(Path("x"), options(), has_gpu=True)


def test_without_slots_for_chats_the_server_is_as_it_was() -> None:
    chosen = options(CHAT_SLOTS="0", CHAT_CTX_SIZE="4096", PARALLEL="3")
    line = " ".join(native_command(Path("x"), chosen, has_gpu=False))
    assert "--ctx-size 8192 --parallel 3 --kv-unified --flash-attn" in line
    assert "--tags" not in line
    params = parameters(chosen)
    assert (params.n_ctx, params.n_parallel, params.kv_unified_per_slot, params.model_tags) == (8192, 3, 0, set())


def test_chats_come_on_top_of_decisions() -> None:
    chosen = options(CTX_SIZE="4096", CHAT_CTX_SIZE="6000", PARALLEL="3", CHAT_SLOTS="1")
    line = " ".join(native_command(Path("x"), chosen, has_gpu=False))
    assert "--ctx-size 10096 --parallel 4 --kv-unified --kv-unified-per-slot 6000" in line
    assert parts_of(list(chosen.tags)) == (4096, 6000)
    assert parts_of(["jev-decisions-4096", "jev-chats-x"]) is None
    assert parts_of(["jev-decisions-4096"]) is None


@pytest.mark.parametrize("count", ["-1", "two", "2.5"])
def test_a_count_of_chat_slots_that_is_none(count: str) -> None:
    with pytest.raises(ValueError, match=f"CHAT_SLOTS has to be a whole number from 0 to .*, got '{count}'"):
        options(CHAT_SLOTS=count)


def test_the_wheel_gets_the_same_options() -> None:
    chosen = options(THREADS="2")
    assert ServerOptions(**json.loads(wheel_command(chosen)[-1])) == chosen


def test_the_wheels_server_is_set_up_like_the_native_one() -> None:
    chosen = options(THREADS="2", BATCH_SIZE="2048", GPU_LAYERS="all")
    params = parameters(chosen)
    assert (params.model.path, params.hostnames, params.port) == ("/m/x.gguf", ["127.0.0.1"], 8097)
    assert params.model_alias == {"x"}
    assert (params.n_ctx, params.n_parallel, params.kv_unified, params.kv_unified_per_slot) == (16384, 6, True, 8192)
    assert params.model_tags == {"jev-decisions-8192", "jev-chats-8192"}
    assert params.flash_attn_type == llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert (params.slot_save_path, params.endpoint_slots, params.use_jinja) == ("/c/slots/", True, True)
    assert (params.cache_ram_mib, params.cache_idle_slots) == (0, False)
    assert (params.ui, params.cors_origins, params.cors_origins_explicit) == (False, "http://127.0.0.1", True)
    assert (params.n_batch, params.n_ubatch) == (2048, 512)
    assert (params.cpuparams.n_threads, params.n_gpu_layers) == (2, -2)


def test_no_key_reaches_the_server() -> None:
    ours = {"JEV_API_KEY": "k", "LLAMA_API_KEY": "k", "LLAMA_ARG_API_KEY_FILE": "f", "LLAMA_SERVER_SLOTS_DEBUG": "1"}
    assert server_environment({**ours, "PATH": "/bin"}) == {"PATH": "/bin"}
