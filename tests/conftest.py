import signal

import torch

torch.set_num_threads(1)

# As at a terminal, also under nohup or in the background, where these are ignored and a run would leave them so.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
