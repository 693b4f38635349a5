# needs: cifar10.npz
# %% [markdown]
# # A CIFAR ResNet that learns and one that memorises
#
# Two networks of one shape fit 2,000 images of CIFAR-10 perfectly: one with the true labels, one with random labels. Training accuracy is the same.
# A survey says which is which, and where in the network the difference lies.
#
# The data are CIFAR-10. `theodolite_papers.lab.data.download_image_set("cifar10")` downloads them once into the folder that the variable `THEODOLITE_DATA`
# names.

# %%
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from theodolite_papers.lab.data import load_image_set

torch.manual_seed(0)
cifar = load_image_set("cifar10")
order = torch.randperm(50_000, generator=torch.Generator().manual_seed(0))[:2_000]


def pixels(images):
    return functional.avg_pool2d(images.float() / 255 - 0.47, 2) / 0.25  # 16 x 16


x, y = pixels(cifar.x_train[order]), cifar.y_train[order]
x_test, y_test = pixels(cifar.x_test[:1_000]), cifar.y_test[:1_000]
random = torch.randint(10, y.shape, generator=torch.Generator().manual_seed(1))

# %% [markdown]
# ## Two networks
#
# A residual network with six blocks, 40 passes over the data.


# %%
class Block(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()
        )

    def forward(self, x):
        inner = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inner)) + self.shortcut(x)).relu()


def trained(labels, passes):
    torch.manual_seed(0)
    blocks = [Block(16, 16), Block(16, 32, 2), Block(32, 32), Block(32, 64, 2), Block(64, 64)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*stem, *blocks, *head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(passes):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


learned, memorised = trained(y, 20), trained(random, 40)

# %% [markdown]
# ## What a survey says
#
# `held_out=` decides: it measures how much of the fit carries over to examples that the network has not seen.

# %%
surveys = {}
for name, model, labels in (("true labels", learned, y), ("random labels", memorised, random)):
    surveys[name] = th.survey(
        model,
        (x, labels),
        held_out=(x_test, y_test),
        families=["representation", "kernel"],
        seconds=None,  # all examples, however long it takes
        name=name,
    )
    print(name)
    for answer in surveys[name].answers:
        print(f"  {answer.text} [{answer.certainty}]")

# %% [markdown]
# ## Where the difference lies
#
# Over depth: with true labels CKA to labels rises from the first block on. With random labels it stays at chance until the last blocks, which memorise.

# %% alt="CKA to labels over the depth of both networks"
comparison = th.compare(*surveys.values())
comparison.plot("cka_target")

# %% alt="Probe accuracy over the depth of both networks"
comparison.plot("probe_accuracy")

# %% [markdown]
# ## What to take away
#
# - Training accuracy cannot separate these networks. Held-out examples can.
# - Training has fitted the last layers of the second network to its random labels, so probes of them reach those labels. Look at the first layers.
# - `comparison.to_html("comparison.html")` writes the page with every measure.
