// Data sets, transforms and the order of samples.
#include "engine/train/data/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/data/order.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/data/sample_transforms.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// The chain for samples of f32 and this shape.
SampleTransforms chain_of(const std::vector<TransformSpec>& specs, const Shape& shape) {
  return SampleTransforms(specs, {ElementType::f32, shape});
}

std::vector<float> apply(const std::vector<TransformSpec>& specs, const Shape& shape, const std::vector<float>& sample,
                         uint64_t seed = 1) {
  const SampleTransforms chain = chain_of(specs, shape);
  SampleRng rng(seed, 0, 0);
  TransformScratch scratch;
  std::vector<float> out(static_cast<size_t>(num_elements(chain.result().shape)));
  chain.run(view_of(sample.data(), shape), rng, scratch, out.data());
  return out;
}

TransformSpec named_transform(const std::string& name, Attrs attrs = {}) {
  return {name, attrs, "dataset.transforms[0]"};
}

std::string spec_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const SpecError& error) {
    const Diagnostic& d = error.diagnostics().at(0);
    return d.path + ": " + d.message;
  }
  return "no error";
}

DatasetSpec mnist(const std::string& path) {
  DatasetSpec spec;
  spec.type = "mnist";
  spec.paths = {path};
  return spec;
}

DatasetSpec random_set(int64_t samples) {
  DatasetSpec spec;
  spec.type = "random";
  spec.shape = {3, 5};
  spec.classes = 10;
  spec.samples = samples;
  return spec;
}

}  // namespace

TEST_CASE("resize is bilinear with half-pixel centres") {
  const auto up = apply({named_transform("resize", {{"size", Ints{1, 4}}})}, {1, 2, 1}, {0, 1});
  CHECK(up == std::vector<float>{0, 0.25f, 0.75f, 1});
  const auto down = apply({named_transform("resize", {{"size", Ints{1, 2}}})}, {1, 4, 1}, {0, 1, 2, 3});
  CHECK(down == std::vector<float>{0.5f, 2.5f});
  const auto channels = apply({named_transform("resize", {{"size", Ints{2, 1}}})}, {1, 1, 2}, {3, 4});
  CHECK(channels == std::vector<float>{3, 4, 3, 4});
}

TEST_CASE("hwc2chw moves the channels first even if no transform computes before it") {
  // A regression: the pass that it began was taken for one of channels first already, and moved nothing.
  const std::vector<float> pixels = {1, 2, 3, 4, 5, 6};
  CHECK(apply({named_transform("hwc2chw")}, {1, 3, 2}, pixels) == std::vector<float>{1, 3, 5, 2, 4, 6});
  CHECK(apply({named_transform("center_crop", {{"size", Ints{1, 2}}}), named_transform("hwc2chw")}, {1, 3, 2},
              pixels) == std::vector<float>{1, 3, 2, 4});
}

TEST_CASE("transforms compose in order and know where the channels are") {
  const std::vector<TransformSpec> specs = {
      named_transform("rescale", {{"scale", 0.5}, {"shift", 1.0}}), named_transform("hwc2chw"),
      named_transform("normalize", {{"mean", std::vector<double>{1, 2}}, {"std", std::vector<double>{1, 0.5}}})};
  // [1, 2, 2]: channels 0, 1 of two pixels -> (x / 2 + 1 - mean) / std, channel major
  CHECK(apply(specs, {1, 2, 2}, {0, 2, 4, 6}) == std::vector<float>{0, 2, 0, 4});
  CHECK(chain_of(specs, {1, 2, 2}).result().shape == Shape{2, 1, 2});
}

TEST_CASE("center_crop selects the middle, and pads a smaller image with zeros") {
  const std::vector<float> image = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // [3, 4, 1]
  CHECK(apply({named_transform("center_crop", {{"size", Ints{1, 2}}})}, {3, 4, 1}, image) == std::vector<float>{6, 7});
  CHECK(apply({named_transform("center_crop", {{"size", Ints{2, 1}}})}, {3, 4, 1}, image) == std::vector<float>{2, 6});
  CHECK(apply({named_transform("center_crop", {{"size", Ints{1, 3}}})}, {1, 1, 2}, {5, 6}) ==
        std::vector<float>{0, 0, 5, 6, 0, 0});
}

TEST_CASE("random_crop draws each place of the padded image, and horizontal_flip swaps left and right") {
  const TransformSpec crop = named_transform("random_crop", {{"size", Ints{2, 2}}, {"padding", int64_t{1}}});
  const std::vector<float> image = {1, 2, 3, 4};  // with padding: 0 0 0 0 / 0 1 2 0 / 0 3 4 0 / 0 0 0 0
  std::set<std::vector<float>> found;
  for (uint64_t seed = 0; seed < 200; ++seed) found.insert(apply({crop}, {2, 2, 1}, image, seed));
  CHECK(found == std::set<std::vector<float>>{{0, 0, 0, 1},
                                              {0, 0, 1, 2},
                                              {0, 0, 2, 0},
                                              {0, 1, 0, 3},
                                              {1, 2, 3, 4},
                                              {2, 0, 4, 0},
                                              {0, 3, 0, 0},
                                              {3, 4, 0, 0},
                                              {4, 0, 0, 0}});
  CHECK(apply({named_transform("horizontal_flip", {{"p", 1.0}})}, {1, 2, 2}, {1, 2, 3, 4}) ==
        std::vector<float>{3, 4, 1, 2});
  int flips = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed)
    flips += apply({named_transform("horizontal_flip", {{"p", 0.25}})}, {1, 2, 1}, {1, 2}, seed)[0] == 2 ? 1 : 0;
  CHECK(flips > 200);
  CHECK(flips < 300);
  CHECK(spec_error([] {
          chain_of({named_transform("random_crop", {{"size", Ints{8, 4}}, {"padding", int64_t{1}}})}, {4, 4, 3});
        }) == "dataset.transforms[0]: random_crop: crops [8, 4] from an image of [4, 4, 3]");
}

TEST_CASE("a sample with random transforms is drawn anew in each pass, and never kept") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 9, 9}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
  DatasetSpec spec = mnist(folder.path());
  spec.transforms = {named_transform("random_crop", {{"size", Ints{3, 3}}, {"padding", int64_t{0}}})};
  const auto set = open_dataset(spec, 1);
  const auto read = [&](uint64_t pass) {
    ReadState state;
    state.rng = SampleRng(1, pass, 2);
    std::vector<float> image(9);
    void* const to[] = {image.data(), nullptr};
    set->read(2, state, to);
    return image;
  };
  std::set<std::vector<float>> found;
  for (uint64_t pass = 0; pass < 20; ++pass) found.insert(read(pass));
  CHECK(found.size() > 10);
  CHECK(read(3) == read(3));
}

TEST_CASE("a validation sees the middle of what training crops, unflipped") {
  JobSpec job;
  job.dataset.transforms = {named_transform("horizontal_flip", {{"p", 0.5}}),
                            named_transform("random_crop", {{"size", Ints{3, 3}}, {"padding", int64_t{2}}})};
  const std::vector<TransformSpec> seen = job.validation_set().transforms;
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].name == "center_crop");
  CHECK(seen[0].attrs.ints("size") == Ints{3, 3});
}

TEST_CASE("a transform that does not fit its sample is a SpecError at that transform") {
  CHECK(spec_error([] {
          chain_of({named_transform("resize", {{"size", Ints{2, 2}}})}, {4});
        }) == "dataset.transforms[0]: resize: needs an image [h, w, c], but the sample is [4]");
  CHECK(spec_error([] {
          chain_of({named_transform("normalize", {{"mean", std::vector<double>{1, 2}}, {"std", 1.0}})}, {4, 4, 3});
        }).find("the sample [4, 4, 3] has 3 channels") != std::string::npos);
  CHECK(spec_error([] {
          chain_of({named_transform("normalize", {{"mean", 0.0}, {"std", 0.0}})}, {4});
        }) == "dataset.transforms[0]: normalize: std is 0");
  CHECK(spec_error([] {
          chain_of({named_transform("type_cast", {{"dtype", std::string("i32")}}), named_transform("hwc2chw")},
                   {4, 4, 1});
        }).find("must come last") != std::string::npos);
}

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

TEST_CASE("a transform that makes samples of more than a gibibyte is refused before it makes one") {
  const std::string error = spec_error([&] {
    chain_of({named_transform("resize", {{"size", Ints{65536, 65536}}})}, {28, 28, 1});
  });
  CHECK(error == "dataset.transforms[0]: resize: produces samples of [65536, 65536, 1], 16.0 GiB");
}

TEST_CASE("the part of a data set that a rank keeps is known before the set is opened") {
  DatasetSpec spec = random_set(1000);
  spec.batch = 10;
  CHECK(read_data_header(spec, 1).bytes == 8 * 1010);
  spec.shuffle = false;
  CHECK(read_data_header(spec, 1).bytes == 8 * 10);
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 2, 3}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
  spec = mnist(folder.path());
  spec.batch = 10;
  CHECK(read_data_header(spec, 1).bytes == 8 * 15 + 5 * 7);
  spec.transforms = {named_transform("resize", {{"size", Ints{4, 4}}})};
  CHECK(read_data_header(spec, 1).bytes == 8 * 15 + 5 * 7 + 2 * 16 * 4);
}

TEST_CASE("the size of a set is known before it is opened") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte.gz", gzip(idx_bytes({5, 2, 3})));
  folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
  CHECK(read_data_size(mnist(folder.path()), 1) == 5);
  CHECK(read_data_size(random_set(70), 1) == 70);
  DatasetSpec one_batch = random_set(0);
  one_batch.batch = 24;
  CHECK(read_data_size(one_batch, 1) == 24);
}

TEST_CASE("a value of a random set depends only on the seed, the sample and the element") {
  const auto a = open_dataset(random_set(100), 7), b = open_dataset(random_set(50), 7),
             c = open_dataset(random_set(100), 8);
  std::vector<float> x(15), y(15), z(15);
  b->read("data", 3, y.data());
  a->read("data", 30, x.data());
  a->read("data", 3, x.data());
  c->read("data", 3, z.data());
  CHECK(x == y);
  CHECK(x != z);
  CHECK(std::all_of(x.begin(), x.end(), [](float v) { return v >= -1 && v < 1; }));
  std::set<int32_t> labels;
  for (int i = 0; i < 100; ++i) {
    int32_t label = -1;
    a->read("label", i, &label);
    labels.insert(label);
  }
  CHECK(labels.size() == 10);
  CHECK(*labels.begin() == 0);
  CHECK(*labels.rbegin() == 9);
}

TEST_CASE("a random set of integers needs to know how many classes there are") {
  DatasetSpec spec = random_set(10);
  spec.classes = 0;
  spec.dtype = "i32";
  CHECK(spec_error([&] { open_dataset(spec, 1); }) ==
        "dataset.classes: random data of integers need a positive "
        "number of classes, not 0");
}

TEST_CASE("an epoch's order is a permutation, the same on all ranks, and another one in the next epoch") {
  DatasetSpec spec;
  spec.batch = 10;
  SampleOrder order(spec, 100, 5), again(spec, 100, 5), other_seed(spec, 100, 6);
  const auto epoch = [](SampleOrder& o, int64_t e) {
    std::vector<int64_t> all;
    for (int64_t s = 0; s < o.steps_per_epoch(); ++s) {
      const auto batch = o.batch(e, s);
      all.insert(all.end(), batch.begin(), batch.end());
    }
    return all;
  };
  const auto first = epoch(order, 0), second = epoch(order, 1);
  CHECK(std::set<int64_t>(first.begin(), first.end()).size() == 100);
  CHECK(first != second);
  CHECK(epoch(again, 1) == second);
  CHECK(epoch(other_seed, 0) != first);
  CHECK(epoch(order, 0) == first);
}

TEST_CASE("a last incomplete batch is dropped or filled up with the epoch's first samples") {
  DatasetSpec spec;
  spec.batch = 4;
  spec.shuffle = false;
  CHECK(SampleOrder(spec, 10, 1).steps_per_epoch() == 2);
  spec.drop_last = false;
  SampleOrder order(spec, 10, 1);
  CHECK(order.steps_per_epoch() == 3);
  const auto last = order.batch(0, 2);
  CHECK(std::vector<int64_t>(last.begin(), last.end()) == std::vector<int64_t>{8, 9, 0, 1});
  spec.repeat = 2;
  CHECK(SampleOrder(spec, 10, 1).steps_per_epoch() == 5);
  spec.drop_last = true;
  spec.batch = 21;
  CHECK(spec_error([&] { SampleOrder(spec, 10, 1); }) ==
        "dataset.batch: a batch of 21 is larger than an epoch of 20 samples");
}

TEST_CASE("an epoch stores one pass at a time, so more passes need no more memory") {
  DatasetSpec spec;
  spec.batch = 4;
  spec.repeat = 3;
  SampleOrder order(spec, 6, 9);
  std::vector<int64_t> all, expected;
  for (int64_t step = 0; step < order.steps_per_epoch(); ++step) {
    const auto batch = order.batch(1, step);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  for (uint64_t pass = 3; pass < 6; ++pass) {  // of the second epoch
    std::vector<int64_t> of_pass(6);
    shuffled_order(9, pass, of_pass);
    expected.insert(expected.end(), of_pass.begin(), of_pass.end());
  }
  expected.resize(16);
  CHECK(all == expected);

  spec.repeat = std::numeric_limits<int64_t>::max();
  SampleOrder endless(spec, 6, 9);
  CHECK(endless.steps_per_epoch() == std::numeric_limits<int64_t>::max() / 4);
  CHECK(endless.batch(0, endless.steps_per_epoch() - 1).size() == 4);
  spec.drop_last = false;
  SampleOrder filled(spec, 6, 9);
  const auto last = filled.batch(0, filled.steps_per_epoch() - 1);
  CHECK(std::all_of(last.begin(), last.end(), [](int64_t s) { return s >= 0 && s < 6; }));
}

TEST_CASE("a set without shuffling may be as large as the numbers go") {
  DatasetSpec spec = random_set(1'000'000'000);
  spec.shuffle = false;
  CHECK(spec_error([&] { require_epoch(spec, spec.samples); }) == "no error");
  SampleOrder order(spec, spec.samples, 1);
  CHECK(order.batch(0, order.steps_per_epoch() - 1).back() == 999'999'999);
}

TEST_CASE("a set that is too large for a list of its samples is shuffled, and resumes anywhere at once") {
  DatasetSpec spec = random_set(10'000'000'000);
  spec.batch = 1000;
  SampleOrder order(spec, spec.samples, 7);
  CHECK(order.steps_per_epoch() == 10'000'000);
  const auto batch = [](SampleOrder& of, int64_t epoch, int64_t step) {
    const std::span<const int64_t> samples = of.batch(epoch, step);
    return std::vector<int64_t>(samples.begin(), samples.end());
  };
  const std::vector<int64_t> far = batch(order, 0, 1'000'000);  // sample 10^9
  CHECK(std::set<int64_t>(far.begin(), far.end()).size() == 1000);
  CHECK(std::all_of(far.begin(), far.end(), [&](int64_t s) { return s >= 0 && s < spec.samples; }));
  CHECK(std::count_if(far.begin(), far.end(), [&](int64_t s) { return s < spec.samples / 2; }) > 400);
  CHECK(std::count_if(far.begin(), far.end(), [&](int64_t s) { return s < spec.samples / 2; }) < 600);
  SampleOrder resumed(spec, spec.samples, 7), other(spec, spec.samples, 8);
  CHECK(batch(resumed, 0, 1'000'000) == far);
  CHECK(batch(resumed, 1, 1'000'000) != far);
  CHECK(batch(other, 0, 1'000'000) != far);
  CHECK(read_data_header(spec, 1).bytes == 8 * 1000);
}

TEST_CASE("a plan counts the samples of a share that a run opens, whatever the seed") {
  const ScratchFolder folder;
  std::string table = "a,y\n";
  for (int i = 0; i < 30; ++i) table += std::to_string(i) + ",1\n";
  const std::string path = folder.write("t.csv", {table.begin(), table.end()});
  std::set<int64_t> sizes;
  for (int seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const PlannedJob job = plan_job(parse_job(
        "seed: " + std::to_string(seed) + "\ndataset: {type: csv, path: " + path +
            ", batch: 1, fields: {x: a, label: y}, label_dtype: f32, split: {train: 0.7, validation: 0.3}}\n"
            "network: [{name: o, type: dense, units: 1, inputs: [x]}]\nloss: mse\nvalidation: {every_epochs: 1}\n",
        "job.yaml"));
    const auto seed_of_job = static_cast<uint64_t>(seed);
    CHECK(job.data.samples == open_dataset(job.spec.dataset, seed_of_job)->size());
    CHECK(job.validation->data.samples == open_dataset(job.validation->set, seed_of_job)->size());
    CHECK(job.data.samples + job.validation->data.samples == 30);
    sizes.insert(job.data.samples);
  }
  CHECK(sizes.size() > 1);  // else the seed would decide nothing here
}
