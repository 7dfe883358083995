// Tests of mixtures: how many samples of each source a step draws, which ones, and how a curriculum orders a set.
#include "engine/planning/mixture.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/error.h"
#include "engine/train/data/order.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

DatasetSpec mixture_of(const std::vector<std::string>& names, std::vector<SourceShare> shares, int64_t batch) {
  DatasetSpec spec;
  spec.type = "mix";
  spec.batch = batch;
  spec.mix = std::move(shares);
  for (const std::string& name : names) {
    DatasetSpec& source = spec.sources.emplace_back();
    source.type = "random";
    source.name = name;
    source.shape = {2};
    source.samples = 7;
    source.classes = 3;
  }
  return spec;
}

std::vector<int64_t> drawn(Mixture& mixture, int64_t step) {
  const std::span<const int64_t> counts = mixture.drawn_before(step);
  return {counts.begin(), counts.end()};
}

/// The samples that the first steps draw from one source, in order.
std::vector<std::pair<uint64_t, int64_t>> draws_of(const DatasetSpec& spec, const std::string& name, int64_t steps) {
  const std::unique_ptr<Dataset> set = open_dataset(spec, 5);
  SampleOrder order(spec, *set, 5);
  std::vector<std::pair<uint64_t, int64_t>> draws;
  int64_t first = 0;
  int32_t number = 0;
  for (; spec.sources[static_cast<size_t>(number)].name != name; ++number)
    first += set->sources()[static_cast<size_t>(number)]->size();
  for (int64_t step = 0; step < steps; ++step) {
    const std::span<const int64_t> batch = order.batch(step / order.steps_per_epoch(), step % order.steps_per_epoch());
    for (size_t row = 0; row < batch.size(); ++row)
      if (order.row_sources()[row] == number) draws.emplace_back(order.passes()[row], batch[row] - first);
  }
  return draws;
}

}  // namespace

TEST_CASE("the samples drawn from each source stay within one of its share, and batches are full") {
  const DatasetSpec spec = mixture_of({"a", "b", "c"}, {{"a", 0.5}, {"b", 0.3}, {"c", 0.2}}, 7);
  Mixture mixture(spec, {{"a", 100, 0}, {"b", 100, 0}, {"c", 100, 0}});
  for (int64_t step = 0; step < 500; ++step) {
    const std::span<const int64_t> counts = mixture.counts(step);
    CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == 7);
    const std::vector<int64_t> before = drawn(mixture, step);
    const double shares[] = {0.5, 0.3, 0.2};
    for (size_t i = 0; i < 3; ++i)
      CHECK(std::abs(static_cast<double>(before[i]) - shares[i] * 7 * static_cast<double>(step)) < 1.01);
  }
}

TEST_CASE("a mixture that is asked for a step far ahead, or again for one before, gives the same counts") {
  const DatasetSpec spec = mixture_of({"a", "b"}, {{"a", 1}, {"b", 2.5}}, 3);
  Mixture in_order(spec, {{"a", 9, 0}, {"b", 9, 0}}), anywhere(spec, {{"a", 9, 0}, {"b", 9, 0}});
  std::map<int64_t, std::vector<int64_t>> expected;
  for (int64_t step = 0; step <= 5000; ++step) expected[step] = drawn(in_order, step);
  for (const int64_t step : {5000, 17, 2048, 2047, 0, 4999}) CHECK(drawn(anywhere, step) == expected[step]);
}

TEST_CASE("a temperature above 1 makes shares more equal, and without shares they are the sizes") {
  DatasetSpec spec = mixture_of({"a", "b"}, {}, 10);
  CHECK(Mixture(spec, {{"a", 90, 0}, {"b", 10, 0}}).shares(0)[0] == doctest::Approx(0.9));
  spec.temperature = 2;
  CHECK(Mixture(spec, {{"a", 90, 0}, {"b", 10, 0}}).shares(0)[0] == doctest::Approx(0.75));
}

TEST_CASE("shares by tokens draw more samples of a source with shorter ones") {
  DatasetSpec spec = mixture_of({"a", "b"}, {{"a", 0.5}, {"b", 0.5}}, 10);
  spec.mix_by = "tokens";
  CHECK(Mixture(spec, {{"a", 90, 100}, {"b", 10, 300}}).shares(0)[0] == doctest::Approx(0.75));
  CHECK_THROWS_AS(Mixture(spec, {{"a", 90, 100}, {"b", 10, 0}}), SpecError);
}

TEST_CASE("a schedule changes shares at its steps, at once or over a ramp") {
  DatasetSpec spec = mixture_of({"a", "b"}, {{"a", 1}}, 10);
  spec.mix_schedule = {{10, 0, {{"b", 1}}, ""}, {20, 4, {{"a", 1}}, ""}};
  Mixture mixture(spec, {{"a", 90, 0}, {"b", 90, 0}});
  CHECK(drawn(mixture, 10) == std::vector<int64_t>{100, 0});
  CHECK(drawn(mixture, 20) == std::vector<int64_t>{100, 100});
  CHECK(mixture.shares(20)[0] == doctest::Approx(0.25));
  CHECK(mixture.shares(23)[0] == doctest::Approx(1));
  CHECK(drawn(mixture, 30) == std::vector<int64_t>{185, 115});
}

TEST_CASE("a source that has reached max_epochs is drawn no more, and the others keep their proportions") {
  DatasetSpec spec = mixture_of({"a", "b", "c"}, {{"a", 2}, {"b", 1}, {"c", 1}}, 8);
  spec.sources[0].max_epochs = 1.5;
  Mixture mixture(spec, {{"a", 20, 0}, {"b", 1000, 0}, {"c", 1000, 0}});
  CHECK(drawn(mixture, 5) == std::vector<int64_t>{20, 10, 10});
  const std::vector<int64_t> later = drawn(mixture, 100);
  CHECK(later[0] == 30);
  CHECK(later[1] == later[2]);
  spec.sources[1].max_epochs = spec.sources[2].max_epochs = 1;
  Mixture limited(spec, {{"a", 20, 0}, {"b", 10, 0}, {"c", 10, 0}});
  CHECK(drawn(limited, 6) == std::vector<int64_t>{28, 10, 10});
  CHECK_THROWS_AS(limited.drawn_before(7), SpecError);
}

TEST_CASE("each pass over a source has each of its samples once, whatever the mixture") {
  DatasetSpec spec = mixture_of({"a", "b"}, {{"a", 0.6}, {"b", 0.4}}, 4);
  spec.samples = 12;
  for (const char* name : {"a", "b"}) {
    std::map<uint64_t, std::set<int64_t>> passes;
    const auto draws = draws_of(spec, name, 60);
    for (const auto& [pass, sample] : draws) CHECK(passes[pass].insert(sample).second);
    for (const auto& [pass, samples] : passes)
      if (pass < draws.back().first) CHECK(samples.size() == 7);
  }
}

TEST_CASE("a source keeps the order of its samples when another one is added before it") {
  const auto before = draws_of(mixture_of({"a", "b"}, {{"a", 0.5}, {"b", 0.5}}, 4), "b", 12);
  const auto after = draws_of(mixture_of({"new", "a", "b"}, {{"new", 0.5}, {"a", 0.25}, {"b", 0.25}}, 4), "b", 24);
  REQUIRE(before.size() == 24);
  CHECK(after == before);
}

TEST_CASE("random numbers of a source's samples do not depend on the other sources") {
  DatasetSpec two = mixture_of({"a", "b"}, {}, 4), three = mixture_of({"new", "a", "b"}, {}, 4);
  three.sources[0].samples = 11;
  const std::unique_ptr<Dataset> small = open_dataset(two, 5), large = open_dataset(three, 5);
  std::vector<float> one(2), other(2);
  small->read("data", 7 + 3, one.data());
  large->read("data", 11 + 7 + 3, other.data());
  CHECK(one == other);
}

TEST_CASE("a mixture refuses a source with other fields, and names it") {
  DatasetSpec spec = mixture_of({"a", "b"}, {}, 4);
  spec.sources[1].shape = {3};
  try {
    open_dataset(spec, 1);
    FAIL("it was opened");
  } catch (const SpecError& error) {
    CHECK(error.diagnostics().front().path == "dataset.sources.b");
  }
}

TEST_CASE("a curriculum visits short samples first, each once, and later passes in random order") {
  DatasetSpec spec;
  spec.curriculum = "length";
  spec.curriculum_noise = 0.1;
  std::vector<int32_t> lengths(1000);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int32_t>(i * 7919 % 1000);
  PassOrder order(spec, 1000, 3, lengths);
  const auto visit = [&](uint64_t pass) {
    std::vector<int32_t> visited;
    std::set<int64_t> samples;
    for (int64_t i = 0; i < 1000; ++i) {
      samples.insert(order.at(pass, i));
      visited.push_back(lengths[static_cast<size_t>(order.at(pass, i))]);
    }
    CHECK(samples.size() == 1000);
    return visited;
  };
  const std::vector<int32_t> first = visit(0), second = visit(1);
  for (int32_t i = 0; i < 1000; ++i) CHECK(std::abs(first[static_cast<size_t>(i)] - i) <= 205);
  const auto mean_of_start = [](const std::vector<int32_t>& v) {
    return std::accumulate(v.begin(), v.begin() + 200, 0) / 200;
  };
  CHECK(mean_of_start(first) < 130);
  CHECK(mean_of_start(second) > 400);
}
