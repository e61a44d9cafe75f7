"""Image data sets: one is part of the package, the others are read from disk or downloaded."""

from nres.data.datasets import CIFAR10 as CIFAR10
from nres.data.datasets import DATASETS as DATASETS
from nres.data.datasets import FASHION_MNIST as FASHION_MNIST
from nres.data.datasets import MNIST as MNIST
from nres.data.datasets import DataError as DataError
from nres.data.datasets import Dataset as Dataset
from nres.data.datasets import places as places
from nres.data.fetching import download as download
from nres.data.read import Images as Images
from nres.data.read import cifar10 as cifar10
from nres.data.read import fashion_mnist as fashion_mnist
from nres.data.read import mnist as mnist
from nres.data.small import grey as grey
from nres.data.small import scaled as scaled
