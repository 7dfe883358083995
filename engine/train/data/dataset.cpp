// Opens the data set of a job, and wraps it in the sets that replace broken samples and cache samples.
#include "engine/train/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/planning/device_data.h"
#include "engine/train/data/byte_map.h"
#include "engine/train/data/cached_set.h"
#include "engine/train/data/class_text_set.h"
#include "engine/train/data/clicks.h"
#include "engine/train/data/cut_transforms.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/drawn_shapes.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/made_sets.h"
#include "engine/train/data/mixed_set.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/noised_set.h"
#include "engine/train/data/open_source.h"
#include "engine/train/data/order.h"
#include "engine/train/data/preference_set.h"
#include "engine/train/data/sample_transforms.h"
#include "engine/train/data/source_set.h"
#include "engine/train/data/token_set.h"
#include "engine/train/files/store/remote_file.h"

namespace trainctl {
namespace {

DataShapes token_shapes(const DatasetSpec& spec) { return data_and_label({spec.length}, {spec.length}, true, true); }

class Tokens final : public Dataset {
 public:
  explicit Tokens(const DatasetSpec& spec) : set_(spec), fields_(as_loaded(token_shapes(spec))) {}
  int64_t size() const override { return set_.size(); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    const StageTimer timer(state.seconds, ReadStage::read);
    set_.read(sample, state.tokens, static_cast<int32_t*>(to[0]), static_cast<int32_t*>(to[1]));
  }
  void expect(int64_t sample) const override { set_.expect(sample); }
  std::string where(int64_t sample) const override { return set_.where(sample); }
  double tokens_per_sample() const override { return static_cast<double>(fields_.front().elements()); }

 private:
  TokenSet set_;
  std::vector<SampleField> fields_;
};

DataShapes shapes_of(const std::vector<SampleField>& fields) {
  DataShapes shapes;
  for (const SampleField& field : fields) shapes.fields.push_back({field.name, field.shape, field.is_integer});
  return shapes;
}

/// Returns whether samples are cached: they must be the same in each pass, and all of them together, `bytes`, must not
/// be too many.
bool is_kept(const DatasetSpec& spec, const FieldWays& ways, int64_t bytes) {
  if (spec.cache == "none") return false;
  if (spec.cache != "auto") return true;
  return ways.is_work && bytes <= most_cached_bytes();
}

std::unique_ptr<Dataset> kept(std::unique_ptr<Dataset> set, const DatasetSpec& spec, int shared_cache) {
  return keep_samples(std::move(set), spec.cache == "disk" ? CachePlace::disk : CachePlace::memory, shared_cache);
}

std::unique_ptr<Dataset> open_source_set(const DatasetSpec& spec, uint64_t seed, int shared_cache) {
  const std::shared_ptr<const Source> source = open_source(spec, seed);
  FieldWays ways(source->fields(), spec, FieldWays::Bytes::stay);
  const bool skips = spec.on_error == "skip";
  if (ways.is_random) {
    std::unique_ptr<Dataset> set;
    if (std::optional<CutTransforms> cut = cut_at_first_random(source->fields(), spec, FieldWays::Bytes::stay)) {
      auto before = std::make_unique<SourceSet>(source, std::move(cut->before));
      if (is_kept(spec, before->ways(), cached_bytes(*before)))
        set = continue_samples(kept(std::move(before), spec, shared_cache), ways.fields, std::move(cut->after));
    }
    if (!set) set = std::make_unique<SourceSet>(source, std::move(ways));
    // This set is outside the cache, because the sample that replaces a broken one draws its own random numbers.
    return skips ? replace_broken(std::move(set), seed) : std::move(set);
  }
  auto plain = std::make_unique<SourceSet>(source, std::move(ways));
  const bool keep = is_kept(spec, plain->ways(), cached_bytes(*plain));
  std::unique_ptr<Dataset> set = std::move(plain);
  if (skips) set = replace_broken(std::move(set), seed);
  return keep ? kept(std::move(set), spec, shared_cache) : std::move(set);
}

/// Bytes of the scratch memory of one worker.
int64_t scratch_bytes(const FieldWays& ways) {
  int64_t most = 0;
  for (const FieldWay& way : ways.ways) {
    if (!way.transforms) continue;
    for (const Shape& shape : {way.transforms->input().shape, way.transforms->result().shape})
      if (std::find(shape.begin(), shape.end(), kAnySize) == shape.end()) most = std::max(most, num_elements(shape));
  }
  return capped_product({most, int64_t{2}, int64_t{sizeof(float)}});
}

/// The header of a set whose samples are mapped from files or generated. A rank then needs memory only for the order of
/// the samples.
DataHeader without_files(DataShapes shapes, int64_t samples) { return {std::move(shapes), samples}; }

DataHeader header_of(const std::vector<SourceField>& fields, int64_t samples, int64_t kept_bytes,
                     const DatasetSpec& spec) {
  const FieldWays ways(fields, spec);
  return {shapes_of(ways.fields), samples, capped_sum(kept_bytes, scratch_bytes(ways)), false,
          byte_fields(FieldWays(fields, spec, FieldWays::Bytes::stay).fields)};
}

DataHeader mnist_header(const DatasetSpec& spec) {
  const MnistHeader files = read_mnist_header(spec.paths.front(), spec.split);
  return header_of(mnist_fields(files.sample_shape), files.size,
                   capped_product(files.size, num_elements(files.sample_shape) + 1), spec);
}

/// The header of a set whose samples are lines of JSON Lines.
template <class Set>
DataHeader header_of_lines(const DatasetSpec& spec) {
  const Set set(spec);
  return {Set::shapes_of(spec), set.size(), set.memory_bytes()};
}

/// The header of a set whose rows are made of documents.
DataHeader header_of_documents(const DatasetSpec& spec, uint64_t seed) {
  const DocumentSet set(spec, seed);
  DataHeader header{DocumentSet::shapes_of(spec), set.size(), set.memory_bytes()};
  header.tokens = set.tokens_per_sample();
  header.notes = set.notes();
  header.is_random = spec.fim > 0;
  return header;
}

DataHeader plain_header(const DatasetSpec& spec, uint64_t seed) {
  if (spec.is_mix()) return mixed_header(spec, seed);
  object_store::set_cache_limit(spec.store_cache);
  if (spec.has_class_texts()) return header_of_lines<ClassTextSet>(spec);
  if (spec.has_documents()) return header_of_documents(spec, seed);
  if (spec.type == "preference") return header_of_lines<PreferenceSet>(spec);
  if (spec.has_tokens()) {
    DataHeader header = without_files(token_shapes(spec), read_token_index(spec).samples);
    header.tokens = static_cast<double>(spec.length);
    return header;
  }
  if (spec.type == "mnist" && spec.labels) return mnist_header(spec);
  if (spec.type == "clicks") return without_files(click_shapes(spec), made_size(spec));
  if (spec.type == "shapes") return without_files(drawn_shapes(spec), made_size(spec));
  if (!spec.has_source() && spec.type != "mnist") return without_files(made_shapes(spec), made_size(spec));
  const std::shared_ptr<const Source> source = open_source(spec, seed);
  DataHeader header = header_of(source->fields(), source->size(), source->memory_bytes(), spec);
  header.classes = source->class_names();
  return header;
}

DataHeader read_files_header(const DatasetSpec& spec, uint64_t seed) {
  DataHeader header = plain_header(spec, seed);
  if (spec.noise_steps == 0) return header;
  header.shapes = noised_shapes(header.shapes);
  header.is_random = true;
  header.byte_fields.clear();  // a row is computed on the host
  header.classes.clear();
  return header;
}

/// Opens a data set without noise, batch transforms and limits. `shared_cache` is a descriptor of memory for a cache
/// that ranks share, or -1.
std::unique_ptr<Dataset> open_plain_set(const DatasetSpec& spec, uint64_t seed, int shared_cache) {
  if (spec.is_mix()) return open_mixed_set(spec, seed);
  object_store::set_cache_limit(spec.store_cache);
  if (spec.has_class_texts()) {
    auto set = std::make_unique<ClassTextSet>(spec);
    if (cached_bytes(*set) > most_cached_bytes()) return set;
    return keep_samples(std::move(set), CachePlace::memory, shared_cache);
  }
  // The system's page cache already keeps the tokens, so a cache of samples would save nothing.
  if (spec.has_documents()) return std::make_unique<DocumentSet>(spec, seed);
  if (spec.type == "preference") return std::make_unique<PreferenceSet>(spec);
  if (spec.has_tokens()) return std::make_unique<Tokens>(spec);
  if (spec.has_source() || spec.type == "mnist") return open_source_set(spec, seed, shared_cache);
  if (spec.type == "clicks") return make_clicks(spec, seed);
  if (spec.type != "random" && spec.type != "constant" && spec.type != "shapes")
    throw SpecError({}, "dataset.type", "unknown data set '" + spec.type + "'",
                    "mnist, image_folder, tar, csv, table, npy, npz, safetensors, cifar10, cifar100, audio_folder, "
                    "tokens, text, chat, preference, random, constant, clicks, shapes, mix");
  std::unique_ptr<Dataset> set = spec.type == "random"   ? make_random_set(spec, seed)
                                 : spec.type == "shapes" ? make_drawn_set(spec, seed)
                                                         : make_constant_set(spec);
  if (cached_bytes(*set) <= most_cached_bytes()) set = keep_samples(std::move(set), CachePlace::memory);
  return set;
}

}  // namespace

void load_field(const SampleField& field, const void* from, DType type, void* to) {
  if (field.map) return field.map->load(from, type, to);
  convert_elements(from, field.type, field.elements(), type, to);
}

bool may_load_bytes(const SampleField& field) {
  return field.type == ElementType::u8 && !field.is_integer && field.name != "label";
}

std::vector<ByteField> byte_fields(const std::vector<SampleField>& fields) {
  std::vector<ByteField> all;
  for (const SampleField& field : fields) {
    if (!may_load_bytes(field)) continue;
    ByteField& of_bytes = all.emplace_back(field.name);
    if (field.map) {
      of_bytes.table = field.map->table();
    } else {
      of_bytes.table.pixels = field.elements();
      of_bytes.table.values.resize(static_cast<size_t>(ByteTable::kValues));
      std::iota(of_bytes.table.values.begin(), of_bytes.table.values.end(), 0.0f);
    }
  }
  return all;
}

std::vector<SampleField> as_loaded(const DataShapes& shapes) {
  std::vector<SampleField> fields;
  for (const DataField& field : shapes.fields)
    fields.push_back(
        {field.name, field.is_integer ? ElementType::i32 : ElementType::f32, field.shape, field.is_integer});
  return fields;
}

DataShapes Dataset::shapes() const { return shapes_of(fields()); }

int Dataset::find(std::string_view field) const {
  for (size_t i = 0; i < fields().size(); ++i)
    if (fields()[i].name == field) return static_cast<int>(i);
  return -1;
}

void Dataset::read(std::string_view field, int64_t sample, void* out) const {
  const int at = find(field);
  check(at >= 0, "a field that is read is one of the set's");
  const SampleField& one = fields()[static_cast<size_t>(at)];
  ReadState state;
  state.rng = SampleRng(0, 0, sample);
  std::vector<std::byte> bytes(static_cast<size_t>(one.bytes()));
  std::vector<void*> to(fields().size());
  to[static_cast<size_t>(at)] = bytes.data();
  read(sample, state, to);
  load_field(one, bytes.data(), one.is_integer ? DType::i32 : DType::f32, out);
}

std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec, uint64_t seed, int shared_cache) {
  std::unique_ptr<Dataset> set = open_plain_set(spec, seed, shared_cache);
  return spec.noise_steps > 0 ? add_noise(std::move(set), spec) : std::move(set);
}

DataHeader read_data_header(const DatasetSpec& spec, uint64_t seed) {
  DataHeader header = read_files_header(spec, seed);
  header.is_random = header.is_random || has_random_transforms(spec.transforms);
  const int64_t listed =
      spec.shuffle && !spec.is_mix() && spec.shuffle_block == 0 && header.samples <= kMostListedSamples ? header.samples
                                                                                                        : 0;
  header.bytes = capped_sum(header.bytes, capped_product(spec.batch + listed, int64_t{sizeof(int64_t)}));
  return header;
}

DataShapes read_data_shapes(const DatasetSpec& spec, uint64_t seed) { return read_data_header(spec, seed).shapes; }
int64_t read_data_size(const DatasetSpec& spec, uint64_t seed) { return read_data_header(spec, seed).samples; }

void check_files(const DatasetSpec& spec) {
  for (const DatasetSpec& source : spec.sources) {
    try {
      check_files(source);
    } catch (const SpecError& error) {
      throw of_source(error, source.name);
    }
  }
  if (spec.is_mix()) return;
  if (spec.type == "mnist" && spec.labels) check_mnist_files(spec.paths.front(), spec.split);
  try {
    check_source_files(spec);
  } catch (const EnvError& error) {
    throw SpecError({}, "dataset.path", error.what());
  }
}

}  // namespace trainctl
