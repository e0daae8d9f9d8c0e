"""What `tpustack goodput` needs beside the arithmetic, which is the trainer's: files, money."""
