// Data sets that generate images, and the noise of diffusion models.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/train/data/dataset.h"
#include "engine/train/data/drawn_shapes.h"
#include "engine/train/data/noised_set.h"

using namespace trainctl;

namespace {

DatasetSpec drawn(int64_t noise_steps = 0) {
  DatasetSpec spec;
  spec.type = "shapes";
  spec.shape = {2, 16, 12};
  spec.samples = 32;
  spec.noise_steps = noise_steps;
  return spec;
}

struct NoisedSample {
  std::vector<float> data, noise;
  int32_t timestep = -1;
};

NoisedSample noised_sample(const Dataset& set, int64_t sample, uint64_t pass) {
  NoisedSample result;
  result.data.resize(static_cast<size_t>(set.fields()[0].elements()));
  result.noise = result.data;
  ReadState state;
  state.rng = SampleRng(7, pass, sample);
  std::vector<void*> to(set.fields().size());
  to[0] = result.data.data();
  to[1] = result.noise.data();
  to[2] = &result.timestep;
  set.read(sample, state, to);
  return result;
}

}  // namespace

TEST_CASE("images of shapes have all classes, and a validation has other samples") {
  const auto set = open_dataset(drawn(), 3);
  DatasetSpec held_out = drawn();
  held_out.takes_validation_share = true;
  const auto other = open_dataset(held_out, 3);
  REQUIRE(set->fields()[1].shape == Shape{16, 12});
  std::vector<int64_t> counts(kDrawnClasses);
  std::vector<int32_t> label(16 * 12), of_other(16 * 12);
  bool differs = false;
  for (int64_t sample = 0; sample < set->size(); ++sample) {
    set->read("label", sample, label.data());
    other->read("label", sample, of_other.data());
    differs = differs || label != of_other;
    for (const int32_t value : label) ++counts.at(static_cast<size_t>(value));
  }
  for (const int64_t count : counts) CHECK(count > 0);
  CHECK(differs);
}

TEST_CASE("a noised sample is sqrt(a) x + sqrt(1 - a) e, with e as its label and a step for each sample and pass") {
  const DatasetSpec spec = drawn(10);
  const auto plain = open_dataset(drawn(), 3), set = open_dataset(spec, 3);
  REQUIRE(set->shapes() == read_data_shapes(spec, 3));
  REQUIRE(set->fields().size() == 3);
  CHECK(set->fields()[1].shape == set->fields()[0].shape);
  const NoiseLevels levels(spec);
  std::vector<float> x(2 * 16 * 12);
  double sum = 0, squares = 0;
  std::vector<int> steps(10);
  for (int64_t sample = 0; sample < set->size(); ++sample) {
    plain->read("data", sample, x.data());
    const NoisedSample one = noised_sample(*set, sample, 1);
    REQUIRE(one.timestep >= 0);
    REQUIRE(one.timestep < 10);
    ++steps[static_cast<size_t>(one.timestep)];
    const float signal = levels.signal[static_cast<size_t>(one.timestep)],
                noise = levels.noise[static_cast<size_t>(one.timestep)];
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(one.data[i] == doctest::Approx(signal * x[i] + noise * one.noise[i]));
      sum += double{one.noise[i]};
      squares += double{one.noise[i]} * double{one.noise[i]};
    }
    CHECK(noised_sample(*set, sample, 1).data == one.data);
    CHECK(noised_sample(*set, sample, 2).noise != one.noise);
  }
  const double n = static_cast<double>(set->size() * 2 * 16 * 12);
  CHECK(std::abs(sum / n) < 0.05);
  CHECK(std::abs(squares / n - 1) < 0.05);
  CHECK(std::count(steps.begin(), steps.end(), 0) < 4);
}

TEST_CASE("the signal of a noise schedule falls from almost all to almost nothing") {
  for (const char* schedule : {"linear", "cosine"}) {
    CAPTURE(std::string(schedule));
    DatasetSpec spec = drawn(1000);
    spec.noise_schedule = schedule;
    const NoiseLevels levels(spec);
    REQUIRE(levels.signal.size() == 1000);
    CHECK(levels.signal.front() > 0.99f);
    CHECK(levels.signal.back() < 0.02f);
    for (size_t t = 1; t < 1000; ++t) CHECK(levels.signal[t] < levels.signal[t - 1]);
  }
}
