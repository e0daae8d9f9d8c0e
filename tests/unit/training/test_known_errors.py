from __future__ import annotations

import subprocess
import sys

import pytest

from tpu_training.errors import KnownError, find_known_error, known_errors, translate

TEXTS = [
    ("host-memory", "terminate called after throwing an instance of 'std::bad_alloc'"),
    (
        "bucket-timeout",
        "Error executing an HTTP request: libcurl code 28 meaning 'Timeout was reached', error "
        "details: Connection timed out after 120 ms",
    ),
    ("tpu-failed", "Unable to enqueue when not opened, queue: [0000:00:04.0]. State is: FAILED"),
    ("worker-lost", "Socket closed"),
    ("master-not-ready", "Failed to connect to the Tensorflow master"),
    ("worker-lost", "failed to connect to all addresses"),
    ("device-memory", "Ran out of memory in memory space vmem. It should not be possible to run"),
    ("device-memory", "Compilation failure: Ran out of memory in memory space hbm; used: 8.60G"),
    # libtpu 0.0.52, 0.0.21 and 0.0.10, provoked without a TPU; E0100: xla/error/error_codes.h.
    (
        "device-memory",
        "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (40.41G) exceeds available HBM (15.48G). HLO module: a.8506.",
    ),
    (
        "device-memory",
        "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 40.27G of "
        "15.48G hbm. Exceeded hbm capacity by 24.79G.",
    ),
    ("device-memory", "E0100: RuntimeBufferAllocationFailure: "),
    (
        "tpu-in-use",
        "Internal error when accessing libtpu multi-process lockfile. Run "
        '"$ sudo rm /tmp/libtpu_lockfile".',
    ),
    ("tpu-in-use", "libtpu.so already in use by another process probably owned by another user."),
    (
        "libtpu-mismatch",
        "TpuTopology_MaybeAvailableSparseCoresPerLogicalDevice not available in this library.",
    ),
    ("libtpu-mismatch", "Check failed: unique_id < INT32_MAX (2147483648 vs. 2147483647)"),
    ("libtpu-kept-from-loading", "TPU_LOAD_LIBRARY=0, not loading libtpu"),
    ("version-mismatch", "Op type not registered 'XlaSend' in binary running on n-1."),
    ("version-mismatch", "... is neither a type of a primitive operation nor a name of a function"),
    ("no-tpu-kernels", "No OpKernel was registered to support Op 'ConfigureDistributedTPU'"),
    ("tpu-reads-local-files", "File system scheme '[local]' not implemented (file: '/tmp/x')"),
    ("no-gs-file-system", "File system scheme 'gs' not implemented (file: 'gs://b/o')"),
    ("worker-restarted", "Unable to find a context_id matching the specified one"),
    (
        "bucket-timeout",
        "GoogleError: https://storage.googleapis.com/storage/v1/b/b/o/j%2Flease.json can't be "
        "reached: timed out",
    ),
    ("too-many-requests", "Error executing an HTTP request: HTTP response code 429 with body ''"),
    (
        "api-disabled",
        "Cloud TPU API has not been used in project 1 before or it is disabled. Enable it",
    ),
    (
        "missing-scope",
        'HTTP response code 403 with body \'{"reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT"}\'',
    ),
    (
        "bucket-permission",
        "Error executing an HTTP request: HTTP response code 403 with body 'x does not have "
        "storage.objects.get access to the Google Cloud Storage object.'",
    ),
    (
        "bucket-missing",
        "Error executing: HTTP response code 404 'The specified bucket does not exist'",
    ),
    ("corrupt-data", "corrupted record at 12345 [Op:IteratorGetNext]"),
    (
        "corrupt-data",
        "Graph execution error:\n\nDetected at node DecodeJpeg\njpeg::Uncompress failed. Invalid "
        "JPEG data or crop window.\n\t [[{{node DecodeJpeg}}]]",
    ),
    ("label-out-of-range", "Received a label value of 11 which is outside the valid range [0, 10)"),
    ("not-writable", "PermissionDeniedError: /m/checkpoints; Permission denied"),
    ("no-tpu-found", "NotFoundError: TPUs not found in the cluster. Failed in initialization"),
    ("disk-full", "/tmp/m/x.tempstate; No space left on device"),
    # TensorFlow's client of buckets writes each file to the local disk first.
    ("disk-full", "InternalError: Could not write to the internal temporary file."),
    # TensorFlow's type for ENOSPC is the one for a device's full memory.
    ("disk-full", "ResourceExhaustedError: /m/ckpt-1.data; No space left on device"),
    # Words of Google's in public issues: magic-modules#7297, skypilot#4579, marin#3200,
    # fontbakery-dashboard#81, goldenmatch#2771, ai-on-gke#849, gardener-extension-provider-gcp#415,
    # fortigate-terraform-deploy#34, magic-modules#18826, cloud-ops-sandbox#678.
    (
        "stock-out",
        "Error waiting for Creating Node: Error code 8, message: There is no more capacity in the "
        'zone "us-central1-b"; you can try in another zone where Cloud TPU Nodes are offered',
    ),
    (
        "no-reservation",
        "Got return code 8 in us-central1-a: 'Insufficient reserved capacity. Contact customer "
        "support to increase your reservation. [EID: 0x7adf6d58c08b0aa4]'",
    ),
    (
        "quota-exceeded",
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 "
        'in region us-east5.", "status": "RESOURCE_EXHAUSTED"',
    ),
    (
        "stock-out",
        "ZONE_RESOURCE_POOL_EXHAUSTED: The zone 'projects/fontbakery-168509/zones/us-central1-a' "
        "does not have enough resources available to fulfill the request. Try a different zone",
    ),
    (
        "stock-out",
        "A n2-highmem-32 VM instance is currently unavailable in the us-central1-a zone.",
    ),
    ("quota-exceeded", "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 12.0 globally."),
    (
        "policy-external-ip",
        "googleapi: Error 412: Constraint constraints/compute.vmExternalIpAccess violated for "
        "project xxxx. Add instance projects/p/zones/z/instances/i to the constraint to use "
        "external IP with it., conditionNotMet",
    ),
    (
        "policy",
        "googleapi: Error 412: Constraint constraints/compute.requireShieldedVm violated for "
        "project projects/myproject. The boot disk's 'initialize_params.source_image' field",
    ),
    (
        "network-missing",
        "Error 400: Invalid value for field 'resource.networkInterfaces[0].network': 'https://www."
        "googleapis.com/compute/v1/projects/p/global/networks/default'. The referenced network "
        "resource cannot be found., invalid",
    ),
    ("network-missing", 'Error 400: Project "p" has no network named "default"., badRequest'),
]


@pytest.mark.parametrize(("name", "text"), TEXTS)
@pytest.mark.parametrize("wrap", ["{}", "[worker 3] E1121 10:00:00 rpc.cc:1] {}", "X\n{}\nat op"])
def test_each_known_text_is_recognised_also_when_wrapped(name: str, text: str, wrap: str) -> None:
    known = find_known_error(wrap.format(text))
    assert known
    assert known.id == name


def test_an_unknown_text_is_not_taken_for_a_known_one() -> None:
    assert find_known_error("step 100: loss 0.25, all is well") is None
    message = str(translate(ValueError("strange\nand more")))
    assert message == "ValueError: strange (not a known error; --debug shows where it occurred)"


def test_of_an_error_in_a_compiled_function_the_line_that_says_it_is_shown() -> None:
    text = "Graph execution error:\n\nDetected at node X\nthe matter [Op:F]\n\t [[{{node X}}]]"
    assert str(translate(RuntimeError(text))).startswith("RuntimeError: the matter (not")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("corrupted record at 5 [[while/body/_1/IteratorGetNext]]", ": "),
        ("corrupted record at 5\nin '/data/train.tfrecord'", " (/data/train.tfrecord): "),
        ("corrupted record at 5\n<Error></Error> gs://b/d/x", " (gs://b/d/x): "),
    ],
)
def test_the_file_that_an_error_is_about_is_shown_and_no_name_of_a_graph(
    text: str, place: str
) -> None:
    assert f"doesn't match the manifest{place}" in str(translate(RuntimeError(text)))


def test_every_known_error_has_an_id_of_its_own_a_cause_a_fix_and_a_link() -> None:
    assert len({known.id for known in known_errors()}) == len(known_errors())
    assert all(known.cause and known.fix for known in known_errors())
    assert all(known.link.startswith("https://") for known in known_errors())


@pytest.mark.parametrize("known", known_errors(), ids=lambda known: known.id)
def test_the_trainer_recognises_each_example_and_the_part_of_it(known: KnownError) -> None:
    assert find_known_error(known.example) == known
    assert find_known_error(known.partial) == known
    assert known.partial in known.example


def test_the_catalogue_needs_neither_yaml_nor_tensorflow() -> None:
    code = (
        "import sys; from tpu_training.errors import known_errors; assert known_errors()\n"
        "sys.exit(str({'yaml', 'tensorflow'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("HTTP response code 403 when reading gs://b/data/manifest.json", 1, "storage.objectUser"),
        (
            "File system scheme '[local]' not implemented (file: '/d/x')",
            2,
            "put the data into a bucket",
        ),
        ("Socket closed", 1, "continues from its last checkpoint"),
    ],
)
def test_a_translated_error_has_cause_cure_and_an_exit_code(
    text: str, code: int, words: str
) -> None:
    error = translate(RuntimeError(text))
    assert error.exit_code == code
    assert words in str(error)
    assert text in str(error)
