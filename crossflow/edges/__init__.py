"""Where crossflow meets people and other programs: the command line, pages, launch files, pictures of timelines.

`cli` has one module a command and is, with `__main__`, the only place that prints. `explore` serves and exports pages on which a
scenario or a study answers at once. `launch` writes a plan as a launch file of Megatron-LM, torchtitan, DeepSpeed, MaxText, vLLM, SGLang,
TensorRT-LLM or Dynamo, and reads such files. `trace` writes timelines for Perfetto and draws them. `bench` measures crossflow itself.

Takes arguments and files; gives text, files and exit statuses. Nothing below imports from here.
"""
