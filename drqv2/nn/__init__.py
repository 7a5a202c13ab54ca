"""Networks, augmentation, returns: tensors in, tensors out."""
