"""From any module and batch to features of layers and factors of parameter uses."""
