// Tests of data sets before and after they are opened, of random data, and of the order of samples.
#include "engine/train/data/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "engine/train/data/order.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/train/data_specs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

DatasetSpec random_set(int64_t samples) {
  DatasetSpec spec;
  spec.type = "random";
  spec.shape = {3, 5};
  spec.classes = 10;
  spec.samples = samples;
  return spec;
}

}  // namespace

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
