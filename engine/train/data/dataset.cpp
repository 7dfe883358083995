// The kinds of data sets, and the layers around them: transforms, label types and a cache.
#include "engine/train/data/dataset.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/token_set.h"
#include "engine/train/data/transforms.h"

namespace trainctl {
namespace {

bool label_is_integer(const DatasetSpec& spec) { return spec.label_dtype == "i32"; }

void write_number(double value, bool integer, int64_t count, void* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (integer) {
      static_cast<int32_t*>(out)[i] = static_cast<int32_t>(value);
    } else {
      static_cast<float*>(out)[i] = static_cast<float>(value);
    }
  }
}

class Mnist final : public Dataset {
 public:
  explicit Mnist(const DatasetSpec& spec) : set_(spec.paths.front(), spec.split) {
    shapes_ = {set_.sample_shape(), {}, false, label_is_integer(spec)};
  }
  int64_t size() const override { return set_.size(); }
  const DataShapes& shapes() const override { return shapes_; }
  void read(int64_t sample, ReadState&, const SampleOutputs& to) const override {
    if (to.data != nullptr) set_.read_image(sample, static_cast<float*>(to.data));
    if (to.label != nullptr) write_number(set_.label(sample), shapes_.label_is_integer, 1, to.label);
  }

 private:
  MnistSet set_;
  DataShapes shapes_;
};

bool reads_tokens(const DatasetSpec& spec) { return spec.type == "tokens" || spec.type == "text"; }

DataShapes token_shapes(const DatasetSpec& spec) { return {{spec.length}, {spec.length}, true, true}; }

class Tokens final : public Dataset {
 public:
  explicit Tokens(const DatasetSpec& spec) : set_(spec), shapes_(token_shapes(spec)) {}
  int64_t size() const override { return set_.size(); }
  const DataShapes& shapes() const override { return shapes_; }
  void read(int64_t sample, ReadState&, const SampleOutputs& to) const override {
    if (to.data != nullptr) set_.read(sample, 0, static_cast<int32_t*>(to.data));
    if (to.label != nullptr) set_.read(sample, 1, static_cast<int32_t*>(to.label));
  }

 private:
  TokenSet set_;
  DataShapes shapes_;
};

DataShapes synthetic_shapes(const DatasetSpec& spec) {
  return {spec.shape, spec.label_shape, spec.dtype == "i32", label_is_integer(spec)};
}

int64_t synthetic_size(const DatasetSpec& spec) { return spec.samples > 0 ? spec.samples : spec.batch; }

/// Element e of sample s is word e of the stream (seed, "dataset.data" or "dataset.label") at s:
/// floats uniform in [-1, 1), integers uniform in [0, classes).
class Random final : public Dataset {
 public:
  Random(const DatasetSpec& spec, uint64_t seed)
      : size_(synthetic_size(spec)), classes_(spec.classes), shapes_(synthetic_shapes(spec)) {
    keys_[0] = stream_key(seed, stable_hash("dataset.data"));
    keys_[1] = stream_key(seed, stable_hash("dataset.label"));
    // Labels without classes belong to a job without a loss (the spec ensures that): they are never read.
    if (classes_ < 1 && shapes_.data_is_integer) {
      throw SpecError({}, "dataset.classes", fmt::format("random data are integers, but classes is {}", classes_),
                      "a positive number: integers are in [0, classes)");
    }
  }
  int64_t size() const override { return size_; }
  const DataShapes& shapes() const override { return shapes_; }
  void read(int64_t sample, ReadState&, const SampleOutputs& to) const override {
    if (to.data != nullptr) draw(DataTensor::data, sample, to.data);
    if (to.label != nullptr) draw(DataTensor::label, sample, to.label);
  }

 private:
  void draw(DataTensor which, int64_t sample, void* out) const {
    const bool integer = which == DataTensor::data ? shapes_.data_is_integer : shapes_.label_is_integer;
    const uint64_t key = keys_[which == DataTensor::data ? 0 : 1];
    Philox4 words{};
    for (int64_t e = 0, n = elements(which); e < n; ++e) {
      if ((e & 3) == 0) words = philox(key, static_cast<uint64_t>(e) >> 2, static_cast<uint64_t>(sample));
      const uint32_t word = words.v[e & 3];
      if (integer) {
        static_cast<int32_t*>(out)[e] = static_cast<int32_t>((uint64_t{word} * static_cast<uint64_t>(classes_)) >> 32);
      } else {
        static_cast<float*>(out)[e] = 2.0f * (static_cast<float>(word >> 8) * 0x1p-24f) - 1.0f;
      }
    }
  }

  int64_t size_, classes_;
  DataShapes shapes_;
  uint64_t keys_[2];
};

class Constant final : public Dataset {
 public:
  explicit Constant(const DatasetSpec& spec)
      : size_(synthetic_size(spec)), shapes_(synthetic_shapes(spec)), value_(spec.value), label_(spec.label_value) {}
  int64_t size() const override { return size_; }
  const DataShapes& shapes() const override { return shapes_; }
  void read(int64_t, ReadState&, const SampleOutputs& to) const override {
    if (to.data != nullptr) write_number(value_, shapes_.data_is_integer, elements(DataTensor::data), to.data);
    if (to.label != nullptr) write_number(label_, shapes_.label_is_integer, elements(DataTensor::label), to.label);
  }

 private:
  int64_t size_;
  DataShapes shapes_;
  double value_, label_;
};

/// A data set with transforms applied to its data.
class Transformed final : public Dataset {
 public:
  Transformed(std::unique_ptr<Dataset> inner, Transforms transforms)
      : inner_(std::move(inner)), transforms_(std::move(transforms)), shapes_(inner_->shapes()) {
    shapes_.data = transforms_.shape();
    shapes_.data_is_integer = transforms_.to_integer();
  }
  int64_t size() const override { return inner_->size(); }
  const DataShapes& shapes() const override { return shapes_; }
  void read(int64_t sample, ReadState& state, const SampleOutputs& to) const override {
    if (to.data == nullptr) return inner_->read(sample, state, to);
    prepare(state);
    float* raw = state.floats.data();
    inner_->read(sample, state, {raw, to.label});
    if (inner_->shapes().data_is_integer) to_floats(raw, inner_->elements(DataTensor::data));
    std::memcpy(to.data, transforms_.apply(raw, state.rng), static_cast<size_t>(elements(DataTensor::data)) * sizeof(float));
  }
  void prepare(ReadState& state) const override {
    const auto scratch = static_cast<size_t>(transforms_.scratch_size());
    if (state.floats.size() < scratch) state.floats.resize(scratch);
  }

 private:
  static void to_floats(float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      int32_t integer;
      std::memcpy(&integer, values + i, sizeof(integer));
      values[i] = static_cast<float>(integer);
    }
  }

  std::unique_ptr<Dataset> inner_;
  Transforms transforms_;
  DataShapes shapes_;
};

/// Keeps the data of each sample after its first read.
class Cached final : public Dataset {
 public:
  explicit Cached(std::unique_ptr<Dataset> inner)
      : inner_(std::move(inner)),
        bytes_(static_cast<size_t>(inner_->elements(DataTensor::data)) * sizeof(float)),
        kept_(static_cast<size_t>(inner_->size())),
        values_(new std::byte[kept_.size() * bytes_]) {}
  int64_t size() const override { return inner_->size(); }
  const DataShapes& shapes() const override { return inner_->shapes(); }
  void read(int64_t sample, ReadState& state, const SampleOutputs& to) const override {
    if (to.data == nullptr) return inner_->read(sample, state, to);
    std::atomic<Kept>& kept = kept_[static_cast<size_t>(sample)];
    std::byte* value = values_.get() + static_cast<size_t>(sample) * bytes_;
    if (kept.load(std::memory_order_acquire) == Kept::yes) {
      std::memcpy(to.data, value, bytes_);
      if (to.label != nullptr) inner_->read(sample, state, {nullptr, to.label});
      return;
    }
    inner_->read(sample, state, to);
    Kept expected = Kept::no;
    if (!kept.compare_exchange_strong(expected, Kept::soon)) return;  // another worker writes it
    std::memcpy(value, to.data, bytes_);
    kept.store(Kept::yes, std::memory_order_release);
  }
  void prepare(ReadState& state) const override { inner_->prepare(state); }

 private:
  enum class Kept : uint8_t { no, soon, yes };

  std::unique_ptr<Dataset> inner_;
  size_t bytes_;
  mutable std::vector<std::atomic<Kept>> kept_;
  std::unique_ptr<std::byte[]> values_;  ///< uninitialised: pages are allocated as samples are read
};

std::unique_ptr<Dataset> open_untransformed(const DatasetSpec& spec, uint64_t seed) {
  if (spec.type == "mnist") return std::make_unique<Mnist>(spec);
  if (spec.type == "random") return std::make_unique<Random>(spec, seed);
  if (spec.type == "constant") return std::make_unique<Constant>(spec);
  throw SpecError({}, "dataset.type", "there is no data set '" + spec.type + "'",
                  "mnist, tokens, text, random, constant");
}

}  // namespace

std::string_view to_string(DataTensor which) { return which == DataTensor::data ? "data" : "label"; }

DataTensor data_tensor(std::string_view name) {
  check(name == "data" || name == "label", "a data set has only the tensors data and label");
  return name == "data" ? DataTensor::data : DataTensor::label;
}

void Dataset::read(DataTensor which, int64_t sample, void* out) const {
  ReadState state;
  state.rng = SampleRng(0, 0, sample);
  read(sample, state, which == DataTensor::data ? SampleOutputs{out, nullptr} : SampleOutputs{nullptr, out});
}

int64_t most_cached_bytes() {
  const auto memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::max(int64_t{256} << 20, memory / 16);
}

std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec, uint64_t seed) {
  if (reads_tokens(spec)) return std::make_unique<Tokens>(spec);  // a copy of mapped memory: a cache would save nothing
  std::unique_ptr<Dataset> set = open_untransformed(spec, seed);
  Transforms transforms(spec.transforms, set->shapes().data);
  if (!spec.transforms.empty()) set = std::make_unique<Transformed>(std::move(set), std::move(transforms));
  const int64_t total = capped_product({set->size(), set->elements(DataTensor::data), int64_t{sizeof(float)}});
  if (total <= most_cached_bytes() && !has_random_transforms(spec.transforms)) set = std::make_unique<Cached>(std::move(set));
  return set;
}

DataShapes read_data_shapes(const DatasetSpec& spec) {
  if (reads_tokens(spec)) return token_shapes(spec);
  DataShapes shapes = synthetic_shapes(spec);
  if (spec.type == "mnist")
    shapes = {read_mnist_header(spec.paths.front(), spec.split).sample_shape, {}, false, label_is_integer(spec)};
  const Transforms transforms(spec.transforms, shapes.data);
  shapes.data = transforms.shape();
  if (!spec.transforms.empty()) shapes.data_is_integer = transforms.to_integer();
  return shapes;
}

int64_t read_data_size(const DatasetSpec& spec) {
  if (reads_tokens(spec)) return read_token_index(spec).samples;
  return spec.type == "mnist" ? read_mnist_header(spec.paths.front(), spec.split).size : synthetic_size(spec);
}

void check_files(const DatasetSpec& spec) {
  if (spec.type == "mnist") check_mnist_files(spec.paths.front(), spec.split);
}

int64_t data_set_bytes(const DatasetSpec& spec) {
  const int64_t samples = read_data_size(spec);
  const auto word = static_cast<int64_t>(sizeof(int64_t));
  int64_t bytes = capped_product(spec.batch + (spec.shuffle ? samples : 0), word);
  if (spec.type != "mnist") return bytes;
  const Shape image = read_mnist_header(spec.paths.front(), spec.split).sample_shape;
  bytes = capped_sum(bytes, capped_product(samples, num_elements(image) + 1));
  if (spec.transforms.empty()) return bytes;
  return capped_sum(bytes, Transforms(spec.transforms, image).scratch_size() * int64_t{sizeof(float)});
}

}  // namespace trainctl
