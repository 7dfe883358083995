// The sources of a mixture (dataset.type mix) as one data set: sample numbers of a source follow those of the sources
// before it.
#include "engine/train/data/mixed_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/spec/fields.h"
#include "engine/train/data/byte_map.h"

namespace trainctl {
namespace {

constexpr const char* kDocumentsField = "documents";

/// Calls `open`; an error of the source's data set names the source.
template <class Open>
auto of_named_source(const std::string& name, Open open) {
  try {
    return open();
  } catch (const SpecError& error) {
    throw of_source(error, name);
  }
}

std::vector<float> byte_values(const SampleField& field) {
  return field.map ? field.map->table().values : std::vector<float>();
}

std::string describe_field(const SampleField& field) {
  return fmt::format("{} {} of {}", field.name, to_string(field.shape), to_string(field.type));
}

bool is_same_field(const SampleField& a, const SampleField& b) {
  return a.name == b.name && a.type == b.type && a.shape == b.shape && a.is_integer == b.is_integer &&
         byte_values(a) == byte_values(b);
}

class MixtureSet final : public Dataset {
 public:
  MixtureSet(const DatasetSpec& spec, uint64_t seed) {
    for (const DatasetSpec& source : spec.sources) {
      Part& part = parts_.emplace_back();
      part.name = source.name;
      part.key = stable_hash(source.name);
      part.first = size_;
      part.set = of_named_source(source.name, [&] { return open_dataset(source, source_seed(seed, source.name)); });
      size_ = capped_sum(size_, part.set->size());
    }
    join_fields();
  }

  int64_t size() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    const Part& part = part_of(sample);
    std::array<void*, kMaxSampleFields> outputs{};
    for (size_t f = 0; f < fields_.size(); ++f) {
      if (part.field[f] >= 0)
        outputs[static_cast<size_t>(part.field[f])] = to[f];
      else if (to[f] != nullptr)
        std::memset(to[f], 0, static_cast<size_t>(fields_[f].bytes()));
    }
    state.rng = state.rng.of_source(part.key, sample - part.first);
    part.set->read(sample - part.first, state, std::span<void* const>(outputs.data(), part.set->fields().size()));
  }
  void prepare(ReadState& state) const override {
    for (const Part& part : parts_) part.set->prepare(state);
  }
  void expect(int64_t sample) const override {
    const Part& part = part_of(sample);
    part.set->expect(sample - part.first);
  }
  std::string where(int64_t sample) const override {
    const Part& part = part_of(sample);
    return part.name + ": " + part.set->where(sample - part.first);
  }
  SkippedSamples skipped() const override {
    SkippedSamples all;
    for (const Part& part : parts_) {
      const SkippedSamples one = part.set->skipped();
      if (all.count == 0) all.first = one.first;
      all.count += one.count;
    }
    return all;
  }
  std::vector<const Dataset*> sources() const override {
    std::vector<const Dataset*> all;
    for (const Part& part : parts_) all.push_back(part.set.get());
    return all;
  }

 private:
  struct Part {
    std::string name;
    uint64_t key = 0;
    int64_t first = 0;  ///< number of its first sample in the mixed set
    std::unique_ptr<Dataset> set;
    std::vector<int> field;  ///< by field of the mixed set: the field of the source, or -1 for zeros
  };

  const Part& part_of(int64_t sample) const {
    const auto next = std::upper_bound(parts_.begin(), parts_.end(), sample,
                                       [](int64_t value, const Part& part) { return value < part.first; });
    return *std::prev(next);
  }

  void join_fields() {
    fields_ = parts_.front().set->fields();
    for (const Part& part : parts_)
      if (const int at = part.set->find(kDocumentsField); at >= 0 && find(kDocumentsField) < 0)
        fields_.push_back(part.set->fields()[static_cast<size_t>(at)]);
    for (Part& part : parts_) {
      for (const SampleField& field : fields_) part.field.push_back(part.set->find(field.name));
      require_same_fields(part);
    }
  }

  void require_same_fields(const Part& part) const {
    const std::vector<SampleField>& own = part.set->fields();
    for (const SampleField& field : own)
      if (const int at = find(field.name); at < 0 || !is_same_field(field, fields_[static_cast<size_t>(at)]))
        fail(part, at < 0 ? nullptr : &fields_[static_cast<size_t>(at)], field);
    for (size_t f = 0; f < fields_.size(); ++f)
      if (part.field[f] < 0 && fields_[f].name != kDocumentsField)
        throw SpecError({}, "dataset.sources." + part.name,
                        fmt::format("has no field '{}', which source '{}' has", fields_[f].name, parts_.front().name),
                        "the sources of a mixture have the same fields");
  }

  [[noreturn]] void fail(const Part& part, const SampleField* first, const SampleField& own) const {
    if (first == nullptr)
      throw SpecError({}, "dataset.sources." + part.name,
                      fmt::format("has the field '{}', which source '{}' does not have", own.name, parts_.front().name),
                      "the sources of a mixture have the same fields");
    throw SpecError({}, "dataset.sources." + part.name,
                    describe_field(own) == describe_field(*first)
                        ? fmt::format("the field {} has transforms that differ from those of source '{}'", own.name,
                                      parts_.front().name)
                        : fmt::format("has {}, but source '{}' has {}", describe_field(own), parts_.front().name,
                                      describe_field(*first)),
                    "the fields of all sources need the same shape and type; use the same length or transforms");
  }

  std::vector<Part> parts_;
  std::vector<SampleField> fields_;
  int64_t size_ = 0;
};

bool has_same_table(const ByteField& field, const std::vector<ByteField>& others) {
  return std::any_of(others.begin(), others.end(), [&](const ByteField& other) {
    return other.name == field.name && other.table.values == field.table.values;
  });
}

}  // namespace

uint64_t source_seed(uint64_t seed, const std::string& name) {
  return stream_key(stream_key(seed, stable_hash("dataset.sources")), stable_hash(name));
}

SpecError of_source(const SpecError& error, const std::string& name) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics)
    if (diagnostic.path.starts_with("dataset.") && !diagnostic.path.starts_with("dataset.sources."))
      diagnostic.path = "dataset.sources." + name + diagnostic.path.substr(std::string("dataset").size());
  return SpecError(std::move(diagnostics));
}

std::unique_ptr<Dataset> open_mixed_set(const DatasetSpec& spec, uint64_t seed) {
  return std::make_unique<MixtureSet>(spec, seed);
}

DataHeader mixed_header(const DatasetSpec& spec, uint64_t seed) {
  DataHeader all;
  for (const DatasetSpec& source : spec.sources) {
    DataHeader one =
        of_named_source(source.name, [&] { return read_data_header(source, source_seed(seed, source.name)); });
    all.sources.push_back({source.name, one.samples, one.tokens});
    all.samples = capped_sum(all.samples, one.samples);
    all.bytes = capped_sum(all.bytes, one.bytes);
    all.is_random = all.is_random || one.is_random;
    for (std::string& note : one.notes) all.notes.push_back(source.name + ": " + std::move(note));
    if (all.sources.size() == 1) {
      all.shapes = std::move(one.shapes);
      all.byte_fields = std::move(one.byte_fields);
      all.classes = std::move(one.classes);
      continue;
    }
    std::erase_if(all.byte_fields, [&](const ByteField& field) { return !has_same_table(field, one.byte_fields); });
    if (one.classes != all.classes)
      throw SpecError({}, "dataset.sources." + source.name,
                      "has classes that differ from those of source '" + spec.sources.front().name + "'",
                      "the classes of all sources need the same names");
    const auto documents = std::find_if(one.shapes.fields.begin(), one.shapes.fields.end(),
                                        [](const DataField& field) { return field.name == kDocumentsField; });
    const bool has_some = std::any_of(all.shapes.fields.begin(), all.shapes.fields.end(),
                                      [](const DataField& field) { return field.name == kDocumentsField; });
    if (documents != one.shapes.fields.end() && !has_some) all.shapes.fields.push_back(*documents);
  }
  return all;
}

}  // namespace trainctl
