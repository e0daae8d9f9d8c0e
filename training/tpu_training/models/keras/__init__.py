"""Models of Keras 3, of tf_keras and of the Keras 2 in older TensorFlows, as the loop takes them.

No model that `--model` names: see registry.py. Nothing here imports Keras, which is loaded only if
the user's own file does.
"""
