"""What every test shares: one thread, plain text of a known width, reproducible examples."""

import os
import signal

# Before numpy is imported: its BLAS reads the number of threads once, and parallel workers must not fight for cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
# Output is compared as text, whatever terminal the tests are started from.
os.environ.update(NO_COLOR="1", COLUMNS="80")
for _name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS"):
    os.environ.pop(_name, None)

# In the background, and under nohup, these are ignored, and every process that a test starts would ignore them too.
for _name, _default in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _default)

from hypothesis import settings  # noqa: E402

# "same" draws the same examples every time, so a red test is about the change; "search" looks for new ones:
# HYPOTHESIS_PROFILE=search make test
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
