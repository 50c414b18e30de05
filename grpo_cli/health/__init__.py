"""What the record of a run says about its health. Must not import torch."""
