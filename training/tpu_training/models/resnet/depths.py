"""The blocks in each stage of a ResNet, by depth."""

# For images like ImageNet's, and like CIFAR's.
LARGE = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
SMALL = {8: (1, 1, 1), 14: (2, 2, 2), 20: (3, 3, 3), 32: (5, 5, 5), 44: (7, 7, 7), 56: (9, 9, 9)}
WITH_BOTTLENECKS = (50, 101, 152)
