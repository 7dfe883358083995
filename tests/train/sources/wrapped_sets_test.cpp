// Tests of data sets that are made of others (the parts of a split, and mixes), and of the check that reads all samples
// of a set.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "engine/train/data/check_source.h"
#include "engine/train/data/sources/mix.h"
#include "engine/train/data/sources/split.h"
#include "tests/train/sources/read_source.h"

using namespace trainctl;

namespace {

/// A source whose sample i has the value first + i and the name name(i).
class Numbers : public Source {
 public:
  explicit Numbers(int64_t size, int64_t first = 0) : size_(size), first_(first) {}
  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>&, std::span<FieldBytes> out) const override {
    if (broken.contains(sample)) throw EnvError(fmt::format("sample {} is broken", sample));
    const int64_t value = first_ + sample;
    out[0].resize(8);
    std::memcpy(out[0].data(), &value, 8);
  }
  std::string where(int64_t sample) const override { return name(sample); }
  int64_t memory_bytes() const override { return 0; }
  const std::vector<std::string>& class_names() const override { return classes; }

  std::vector<std::string> classes;
  std::set<int64_t> broken;
  std::function<std::string(int64_t)> name = [](int64_t sample) { return fmt::format("n/{}", sample); };

 private:
  int64_t size_, first_;
  std::vector<SourceField> fields_ = {{"value", Encoding::array, ElementType::i64, {}}};
};

std::vector<int64_t> values_of_part(std::shared_ptr<const Source> set, const std::string& part, bool by_name = false) {
  const SplitOptions options{{{"train", 0.9}, {"validation", 0.1}}, part, 1, by_name};
  std::vector<int64_t> values = all_values<int64_t>(*open_split(std::move(set), options), 0);
  std::sort(values.begin(), values.end());
  return values;
}

bool includes(const std::vector<int64_t>& all, const std::vector<int64_t>& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

}  // namespace

TEST_CASE("the parts of a split contain each sample once, and have the requested fractions of the samples") {
  for (const bool by_name : {false, true})
    for (const int64_t size : {100, 10'000, 25'003}) {
      CAPTURE(size);
      const auto set = std::make_shared<Numbers>(size);
      std::vector<int64_t> all = values_of_part(set, "train", by_name),
                           rest = values_of_part(set, "validation", by_name);
      const double share = double(rest.size()) / double(size);
      CHECK(std::abs(share - 0.1) < (size == 100 ? 0.09 : 0.01));
      all.insert(all.end(), rest.begin(), rest.end());
      std::sort(all.begin(), all.end());
      REQUIRE(all.size() == size_t(size));
      for (int64_t i = 0; i < size; ++i) REQUIRE(all[size_t(i)] == i);
    }
  CHECK(values_of_part(std::make_shared<Numbers>(20'000), "validation").size() == 2000);
}

TEST_CASE("adding samples moves no other sample to another part of a split") {
  const auto before = std::make_shared<Numbers>(12'345), after = std::make_shared<Numbers>(30'000);
  for (const char* part : {"train", "validation"})
    CHECK(includes(values_of_part(after, part), values_of_part(before, part)));
  // A split by name keeps its parts even if the new samples come first.
  const auto shifted = std::make_shared<Numbers>(12'445, -100);
  shifted->name = [](int64_t sample) {
    return fmt::format("elsewhere/n/{}", sample < 100 ? 99'999 + sample : sample - 100);
  };
  for (const char* part : {"train", "validation"})
    CHECK(includes(values_of_part(shifted, part, true), values_of_part(before, part, true)));
}

TEST_CASE("a split by name treats files of one name in several folders as different files") {
  // Each class has 30 photos, named 0 to 29. If the hash were of the number alone, equal names in all classes would go
  // to the same part, 0 or 4 at a time.
  std::map<size_t, int> sizes;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const auto set = std::make_shared<Numbers>(120);
    set->name = [](int64_t sample) { return fmt::format("/data/photos/class {}/{}.jpg", sample / 30, sample % 30); };
    const SplitOptions options{{{"train", 0.9}, {"validation", 0.1}}, "validation", seed, true, {"/data/photos"}};
    ++sizes[static_cast<size_t>(open_split(set, options)->size()) % 4];
    SplitOptions elsewhere = options;  // the folder itself may move
    elsewhere.folders = {"/mnt/photos/"};
    const auto moved = std::make_shared<Numbers>(120);
    moved->name = [](int64_t sample) { return fmt::format("/mnt/photos/class {}/{}.jpg", sample / 30, sample % 30); };
    CHECK(all_values<int64_t>(*open_split(moved, elsewhere), 0) == all_values<int64_t>(*open_split(set, options), 0));
  }
  CHECK(sizes.size() > 1);
}

TEST_CASE("a split of 10^10 samples opens at once and stores no list") {
  const auto set = std::make_shared<Numbers>(10'000'000'000);
  const auto part = open_split(set, {{{"train", 0.9}, {"validation", 0.1}}, "validation"});
  CHECK(part->size() == 1'000'000'000);
  CHECK(part->memory_bytes() < 1000);
  CHECK(values_of<int64_t>(read_sample(*part, 999'999'999)[0])[0] / 10'000 == 999'999);
}

TEST_CASE("an impossible split is an error that says what is wrong") {
  const auto open = [](std::vector<std::pair<std::string, double>> parts, int64_t size = 100) {
    return error_of([&] { open_split(std::make_shared<Numbers>(size), {std::move(parts), "train"}); });
  };
  CHECK(open({{"train", 0.5}, {"other", 0.5}}) == "no error");
  CHECK(contains(open({{"train", 0.5}, {"other", 0.4}}), "dataset.split: the fractions add up to 0.9"));
  CHECK(contains(open({{"train", 1.5}, {"other", -0.5}}), "the fraction of 'other' is -0.5"));
  CHECK(contains(open({{"train", 0.00001}, {"other", 0.99999}}), "at least 0.0001"));
  CHECK(contains(open({{"trian", 1}}), "there is no part 'train' (parts: trian; did you mean 'trian'?)"));
  CHECK(contains(open({{"train", 0.0001}, {"other", 0.9999}}, 2), "the part 'train' contains none of the 2 samples"));
}

TEST_CASE("a mix takes samples from its sets by weight, evenly from the start, and contains each sample of each set") {
  const std::vector<MixedSet> sets = {{std::make_shared<Numbers>(700), 2},
                                      {std::make_shared<Numbers>(300, 1'000'000), 1},
                                      {std::make_shared<Numbers>(10, 2'000'000), 1}};
  const auto mix = open_mix(sets);
  const std::vector<int64_t> values = all_values<int64_t>(*mix, 0);
  CHECK(mix->size() >= 1399);  // the first set's last sample comes at every second place
  CHECK(mix->size() <= 1402);
  std::vector<double> counts(3), weights = {0.5, 0.25, 0.25};
  for (size_t i = 0; i < values.size(); ++i) {
    ++counts[size_t(values[i] / 1'000'000)];
    for (size_t s = 0; s < 3; ++s) REQUIRE(std::abs(counts[s] - weights[s] * double(i + 1)) < 1.01);
  }
  CHECK(std::set<int64_t>(values.begin(), values.end()).size() == 1010);
  CHECK(mix->where(0) == "n/0");
}

TEST_CASE("a mix of sets with weights of many digits keeps each within one place of its share") {
  std::vector<MixedSet> sets;
  const std::vector<double> weights = {0.1234, 0.3333, 0.0001, 0.5432};
  for (size_t s = 0; s < weights.size(); ++s) sets.push_back({std::make_shared<Numbers>(1, int64_t(s)), weights[s]});
  const auto mix = open_mix(sets);
  std::vector<double> counts(4);
  for (int64_t i = 0; i < mix->size(); ++i) {
    ++counts[size_t(values_of<int64_t>(read_sample(*mix, i)[0])[0])];
    for (size_t s = 0; s < 4; ++s) REQUIRE(std::abs(counts[s] - weights[s] * double(i + 1)) < 1.5);
  }
  CHECK(counts[2] == 1);
}

TEST_CASE("sets that do not match, or weights that are too small, cannot be mixed") {
  const auto a = std::make_shared<Numbers>(3), b = std::make_shared<Numbers>(3);
  CHECK(contains(error_of([&] { open_mix({{a, 1}, {b, 0}}); }), "dataset.weights: a weight is 0"));
  CHECK(contains(error_of([&] { open_mix({{a, 1}, {b, 1e-6}}); }), "is less than 1/20,000"));
  b->classes = {"cat"};
  CHECK(contains(error_of([&] { open_mix({{a, 1}, {b, 1}}); }), "n/0 and n/0 have different classes"));
}

TEST_CASE("a check counts values and broken samples, the same for any number of threads") {
  Numbers set(5000);
  set.broken = {3, 700, 4999};
  for (const int threads : {1, 2, 5}) {
    int64_t last = 0, calls = 0;
    const SourceReport report = check_source(
        set, {.threads = threads, .most_listed = 2, .image_shape = {}, .on_progress = [&](int64_t done, int64_t) {
                CHECK(done > last);
                last = done;
                return ++calls > 0;
              }});
    CHECK(report.samples == 5000);
    CHECK(last == 5000);
    CHECK(report.broken == 3);
    REQUIRE(report.first_broken.size() == 2);
    CHECK(report.first_broken[1].where == "n/700");
    CHECK(report.first_broken[1].error == "sample 700 is broken");
    CHECK(report.fields[0].classes.size() == 4997);
    CHECK(report.fields[0].total_bytes == 4997 * 8);
  }
}

TEST_CASE("a check that is stopped ends early, and a field with too many values lists none") {
  Numbers set(200'000);
  const SourceReport all = check_source(set, {.threads = 2});
  CHECK(all.fields[0].many_values);
  CHECK(all.fields[0].classes.empty());
  const SourceReport some =
      check_source(set, {.threads = 2, .on_progress = [](int64_t done, int64_t) { return done < 1000; }});
  CHECK(some.samples < 2000);
}
