// Tests of folders of mnist: the names of the files, compressed or not, and every way in which they can be damaged.
#include <doctest/doctest.h>

#include "engine/train/data/dataset.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/train/data_specs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

TEST_CASE("an mnist folder gives images and labels, raw or compressed") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 2, 3}));
  folder.write("train-labels-idx1-ubyte.gz", gzip(idx_bytes({5})));
  DatasetSpec spec = mnist(folder.path());
  spec.label_dtype = "f32";
  spec.transforms = {named_transform("hwc2chw")};
  const auto set = open_dataset(spec, 1);
  CHECK(set->size() == 5);
  CHECK(set->shapes().find("data")->shape == Shape{1, 2, 3});
  CHECK(read_data_shapes(spec, 1).find("data")->shape == Shape{1, 2, 3});
  CHECK(read_data_shapes(spec, 1).find("label")->shape == Shape{});
  std::vector<float> image(6);
  for (int again = 0; again < 2; ++again) {  // the second time from the cache
    set->read("data", 2, image.data());
    CHECK(image == std::vector<float>{12, 13, 14, 15, 16, 17});
  }
  float label = 0;
  set->read("label", 3, &label);
  CHECK(label == 3.0f);
}

TEST_CASE("an mnist folder may have the names that Kaggle and 7-Zip write, with a dot") {
  const ScratchFolder folder;
  folder.write("train-images.idx3-ubyte", idx_bytes({5, 2, 3}));
  folder.write("train-labels.idx1-ubyte", idx_bytes({5}));
  CHECK(open_dataset(mnist(folder.path()), 1)->size() == 5);
}

TEST_CASE("the error for an mnist folder without its files names the files") {
  const ScratchFolder folder;
  CHECK(spec_error([&] { open_dataset(mnist(folder.path() + "/nowhere"), 1); }) ==
        "dataset.path: there is no folder '" + folder.path() + "/nowhere'");
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 2, 3}));
  CHECK(spec_error([&] { read_data_shapes(mnist(folder.path()), 1); }) ==
        "dataset.path: '" + folder.path() +
            "' does not contain train-labels-idx1-ubyte (looked for train-labels-idx1-ubyte and "
            "train-labels-idx1-ubyte.gz)");
}

TEST_CASE("mnist files that do not belong together are refused") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 2, 3}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({4}));
  CHECK(spec_error([&] { read_data_shapes(mnist(folder.path()), 1); }) ==
        "dataset.path: " + folder.path() + "/train-images-idx3-ubyte has 5 images, but " + folder.path() +
            "/train-labels-idx1-ubyte has 4 labels");
  CHECK(spec_error([&] { open_dataset(mnist(folder.path()), 1); }).find("has 5 images, but") != std::string::npos);
  const std::string images = folder.write("train-images-idx3-ubyte", idx_bytes({5, 6}));
  CHECK(spec_error([&] {
          read_data_shapes(mnist(folder.path()), 1);
        }).starts_with("dataset.path: " + images + ": byte 2: expected u8 of 3 dims"));
}

TEST_CASE("a damaged header is a SpecError at dataset.path before any sample is read") {
  const ScratchFolder folder;
  const std::string images = folder.write("train-images-idx3-ubyte", {});
  const std::string labels = folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
  const auto error = [&] { return spec_error([&] { read_data_shapes(mnist(folder.path()), 1); }); };
  CHECK(error().starts_with("dataset.path: " + images + ": byte 0: expected an IDX magic number"));
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 2, 3}));
  folder.write("train-labels-idx1-ubyte", {0, 0, 8, 1, 0});
  CHECK(error().starts_with("dataset.path: " + labels + ": byte 5: expected the 4 bytes of dim 0"));
}

TEST_CASE("an IDX file that is cut off or too long is a SpecError at dataset.path before any sample is read") {
  for (const bool compressed : {false, true}) {
    const ScratchFolder folder;
    const std::string name = std::string("train-images-idx3-ubyte") + (compressed ? ".gz" : "");
    std::vector<uint8_t> images = idx_bytes({5, 2, 3});
    folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
    const auto error = [&] {
      const std::string path = folder.write(name, compressed ? gzip(images) : images);
      const std::string text = spec_error([&] { read_data_shapes(mnist(folder.path()), 1); });
      CHECK((text == "no error" || text.starts_with("dataset.path: " + path + ": expected 46 bytes of u8 [5, 2, 3]")));
      return text;
    };
    CHECK(error() == "no error");
    images.pop_back();
    CHECK(error().find("found 45; download the file again") != std::string::npos);
    images.resize(47);
    CHECK(error().find("found 47; download the file again") != std::string::npos);
  }
}

TEST_CASE("a gzip file that is damaged in the middle is a SpecError at dataset.path, before the ranks start") {
  const ScratchFolder folder;
  std::vector<uint8_t> images = gzip(idx_bytes({5, 20, 30}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
  folder.write("train-images-idx3-ubyte.gz", images);
  CHECK_NOTHROW(check_files(mnist(folder.path())));
  images[images.size() / 2] ^= 0x55;
  const std::string path = folder.write("train-images-idx3-ubyte.gz", images);
  for (const bool opens : {false, true}) {
    const std::string error = spec_error([&] {
      if (opens)
        open_dataset(mnist(folder.path()), 1);
      else
        check_files(mnist(folder.path()));
    });
    CHECK(error.starts_with("dataset.path: " + path));
  }
}
