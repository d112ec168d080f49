"""What is miniImageNet? 100 classes of ImageNet, 64/16/20, as 84 x 84 images in one of three forms of files."""

from __future__ import annotations

import csv
import hashlib
import io
import operator
import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from pzobo.data.archives import arrays
from pzobo.data.cache import Named, cached
from pzobo.data.few_shot import FewShotData, ImageClasses
from pzobo.data.lookup import DataError, Source, places, read
from pzobo.data.pictures import picture, resized
from pzobo.data.safe_pickle import load_arrays
from pzobo.errors import OptionError
from pzobo.extras import need

Form = Literal["csv", "pickle", "npz"]
SIZE = 84
PARTS = ("train", "val", "test")

# Of the training images, as everyone takes them.
MEAN = tuple(m / 255 for m in (120.39586422, 115.59361427, 104.54012653))
STD = tuple(s / 255 for s in (70.68188272, 68.27635443, 72.54505529))

NPZ = {
    part: Source(f"miniimagenet/miniimagenet_{part}_200.npz", sha256)
    for part, sha256 in (
        ("train", "fcc33cff9228c585d13a1121fca79f9ca7e5e2736cd08e6c9fbe09bdff9bacc4"),
        ("val", "40e7c49c303e9c76d38f110b6dcfd110d677ccae539f73912a8f337c66e25c74"),
        ("test", "4e65d8249006fbff951ec03b709e34e0ca55b43967e359dfd49dd391acf8229a"),
    )
}
CSV_SHA256 = {
    "train": "498519cd8e49ce97ed26a4a3638966698ae41ab35e9c68538319fc9b46ba7d2f",
    "val": "5658a59921ca027ee76af92949869c5d6f41d77592ff3b18db325a9d10c893b9",
    "test": "2b7cfa78342995761a572a8158e539bc4e0a80f9bbd7d00c1e17a460fbbb93fa",
}


def decode(file: Any, name: str) -> Any:
    """One picture as 3 x 84 x 84; others than 84 x 84 are resized by Pillow's Lanczos filter."""
    rgb = picture(file, name).convert("RGB")
    if rgb.size != (SIZE, SIZE):
        rgb = resized(rgb, SIZE)
    return need("numpy").asarray(rgb).transpose(2, 0, 1)


def grouped(pictures: Iterable[Any], labels: Iterable[Any], what: str) -> Named:
    """Pictures in the order of their classes' first appearance, as classes x images x 3 x 84 x 84."""
    classes: dict[str, list[Any]] = {}
    for pixels, label in zip(pictures, labels, strict=True):
        classes.setdefault(str(label), []).append(pixels)
    if len({len(images) for images in classes.values()}) != 1:
        raise DataError(f"{what} has no images, or classes with different numbers of them.")
    np = need("numpy")
    return np.stack([np.stack(images) for images in classes.values()]), tuple(classes)


def from_npz(content: bytes, name: str) -> Named:
    """The compact form: jpeg files end to end, `offsets`, `labels` and `wnids`."""
    found = arrays(content, name, {"jpeg": 1, "offsets": 1, "labels": 1, "wnids": 1})
    jpeg, offsets, labels, wnids = found.values()
    whole = [found[key].dtype.kind in "iu" and found[key].dtype.itemsize for key in ("offsets", "labels")]
    if jpeg.dtype != "uint8" or not all(whole) or wnids.dtype.kind not in "US" or len(offsets) != len(labels) + 1:
        raise DataError(f"{name} does not hold jpeg files with an offset and a label for each.")
    if not len(labels) or labels.min() < 0 or labels.max() >= len(wnids):
        raise DataError(f"{name} has no images, or labels without a name in wnids.")
    ends = pairwise(int(offset) for offset in offsets)
    return grouped((decode(io.BytesIO(jpeg[a:b].tobytes()), name) for a, b in ends), wnids[labels], name)


def from_pickle(path: Path) -> Named:
    """`mini-imagenet-cache-*.pkl`: {"image_data": n x 84 x 84 x 3 of uint8, "class_dict": {name: places in it}}."""
    try:
        with path.open("rb") as file:
            found = load_arrays(file, str(path))
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    np = need("numpy")
    try:
        images, rows_of_class = found["image_data"], found["class_dict"]
        assert isinstance(images, np.ndarray)
        assert images.dtype == np.uint8
        assert images.shape[1:] == (SIZE, SIZE, 3)
        assert all(isinstance(name, (str, int)) for name in rows_of_class)
        assert sum(map(len, rows_of_class.values())) <= len(images)
        classes = {str(name): np.array([operator.index(row) for row in rows]) for name, rows in rows_of_class.items()}
        array = np.stack([images[rows].transpose(0, 3, 1, 2) for rows in classes.values()])
    except Exception as error:  # the file may hold anything under these names
        raise DataError(f'{path} does not hold "image_data" of n x 84 x 84 x 3 bytes and a "class_dict".') from error
    return array, tuple(classes)


def rows_of(path: Path) -> list[tuple[str, str]]:
    """(filename, label) for each line of a class-split file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(row["filename"], row["label"]) for row in csv.DictReader(file)]
    except (KeyError, OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV file with the columns filename and label.") from error
    for row in rows:
        if not all(isinstance(cell, str) and cell and cell.isprintable() for cell in row):
            raise DataError(f"{path} has a row without a file name and a label that can be printed: {row!r}.")
    outside = [name for name, _ in rows if Path(name).name != name]
    if outside:
        raise DataError(f"{path} names {outside[0]!r}, which is not a file of the folder images beside it.")
    return rows


def from_csv(path: Path) -> Named:
    """The class-split file with pictures of any size in the folder `images` beside it."""
    rows = rows_of(path)
    files = (path.parent / "images" / name for name, _ in rows)
    return grouped((decode(file, str(file)) for file in files), (label for _, label in rows), str(path))


def key_of(paths: Iterable[Path]) -> str:
    """A name for the state of some files: another one when any of them is changed."""
    state = [(str(path), stat.st_size, stat.st_mtime_ns) for path in paths for stat in [path.stat()]]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def found_in(folder: Path, form: Form) -> dict[str, Path] | None:
    """The files of one form in a folder, if all three parts are there."""
    pattern = {"csv": "{}.csv", "pickle": "mini-imagenet-cache-{}.pkl", "npz": "miniimagenet_{}_200.npz"}[form]
    paths = {part: folder / "miniimagenet" / pattern.format(part) for part in PARTS}
    complete = all(path.is_file() for path in paths.values())
    return paths if complete and (form != "csv" or (folder / "miniimagenet" / "images").is_dir()) else None


def missing(forms: Iterable[Form]) -> str:
    """Which files would do, where to put them, and what they are known by."""
    ways = {
        "csv": "train.csv, val.csv and test.csv (sha256 " + ", ".join(CSV_SHA256.values()) + ") with a folder images",
        "pickle": "mini-imagenet-cache-train.pkl, -val.pkl and -test.pkl (read without running code; any copy)",
        "npz": ", ".join(f"{Path(source.path).name} (sha256 {source.sha256})" for source in NPZ.values()),
    }
    return (
        "miniImageNet is not on this computer and has no public address, for ImageNet's terms; put into "
        f"{places(None)[-1] / 'miniimagenet'}, or a folder miniimagenet below root= or PZOBO_DATA, either "
        + "; or ".join(ways[form] for form in forms)
        + "."
    )


def miniimagenet(root: str | os.PathLike[str] | None = None, *, form: Form | None = None) -> FewShotData:
    """Images of 3 x 84 x 84 in the classes of Ravi and Larochelle (2017): 64 to train, 16 to validate, 20 to test.

    The three forms are class-split CSV files with an image folder ("csv"), `mini-imagenet-cache-*.pkl` files
    ("pickle") and the compact npz files with 200 images a class ("npz"). They are decoded once into the cache folder.

    Args:
        root: the folder that has `miniimagenet/`; see `docs/data.md` for where else the files are looked for.
        form: which files to take; the first form that is there in full by default, in the order above.

    Returns:
        A `FewShotData` of images of 3 x 84 x 84.

    Raises:
        DataError: the files are not there, or are not the known ones.
        OptionError: there is no such form.

    Examples:
        >>> len(pzobo.data.miniimagenet().train.names)        # doctest: +SKIP
        64
    """
    forms: tuple[Form, ...] = get_args(Form) if form is None else (form,)
    if not set(forms) <= set(get_args(Form)):
        raise OptionError(f'form={form!r}: must be "csv", "pickle" or "npz".')
    for folder in places(root):
        for kind in forms:
            paths = found_in(folder, kind)
            if paths is not None:
                return together({part: load(kind, part, path, folder) for part, path in paths.items()})
    raise DataError(missing(forms))


def load(form: Form, part: str, path: Path, folder: Path) -> ImageClasses:
    """One part from its file, decoded or from the cache."""
    make: Callable[[], Named]
    if form == "npz":
        source = NPZ[part]
        content = read(source, folder)
        key, make = source.sha256[:16], lambda: from_npz(content, source.path)
    elif form == "pickle":
        key, make = key_of([path]), lambda: from_pickle(path)
    else:
        pictures = (path.parent / "images" / name for name, _ in rows_of(path))
        try:
            key, make = key_of([path, *pictures]), lambda: from_csv(path)
        except OSError as error:
            raise DataError(f"{path} names a picture that is not there: {error.filename}.") from error
    return ImageClasses(*cached(f"miniimagenet-{part}-{key}", make), mean=MEAN, std=STD)


def together(parts: dict[str, ImageClasses]) -> FewShotData:
    """The three parts, whose classes must not mix."""
    names = [name for part in parts.values() for name in part.names]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DataError(f"miniImageNet's parts share classes ({', '.join(sorted(twice)[:3])}); they must not.")
    return FewShotData(**parts)
