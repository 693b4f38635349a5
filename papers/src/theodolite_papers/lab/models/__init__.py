"""The networks of the five papers."""

from theodolite_papers.lab.models.convnets import (
    conv_net,
    simple_cnn,
    simple_cnn_pooled,
    strided_cnn,
    vgg16,
    vgg19,
)
from theodolite_papers.lab.models.mlp import NTKLinear, Sin, mlp, ntk_mlp
from theodolite_papers.lab.models.mobile import (
    MobileNet,
    efficientnet_lite0,
    mobilenet_v2,
    pretrained_keys,
)
from theodolite_papers.lab.models.residual import (
    DenseNet,
    KernelResNet,
    PreActivationNet,
    ResNet,
    densenet121,
    kernel_resnet,
    resnet18,
    resnet18_v2,
    resnet50,
    wide_resnet,
)
from theodolite_papers.lab.models.transfer import replace_head_, transfer_layers_

__all__ = [
    "DenseNet",
    "KernelResNet",
    "MobileNet",
    "NTKLinear",
    "PreActivationNet",
    "ResNet",
    "Sin",
    "conv_net",
    "densenet121",
    "efficientnet_lite0",
    "kernel_resnet",
    "mlp",
    "mobilenet_v2",
    "ntk_mlp",
    "pretrained_keys",
    "replace_head_",
    "resnet18",
    "resnet18_v2",
    "resnet50",
    "simple_cnn",
    "simple_cnn_pooled",
    "strided_cnn",
    "transfer_layers_",
    "vgg16",
    "vgg19",
    "wide_resnet",
]
