// See the header.
#include "engine/train/checkpoint/import_weights.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/delete_checkpoint.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/digest.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kImportedBlockElements = int64_t{1} << 20;
constexpr const char* kWeightsName = "rank.0000.safetensors";
constexpr const char* kImportedJobName = "job.yaml";

struct Wanted {
  std::string name;
  std::string slot;
  Shape shape;
  MappedTensor mapped;
  AxisOrder::Sizes sizes{};
  std::vector<std::string> sources{};  ///< mapped.theirs, or what they are tied to
};

class Importer {
 public:
  Importer(const PlannedJob& job, const WeightFiles& files, NameMap map)
      : job_(job), files_(files), map_(std::move(map)), layers_(numbers_of(job.spec)) {
    map_.drop_prefix_unless_used(files.names());
    std::vector<std::string> names;
    for (const VariablePlan& variable : job.plan.variables) {
      names.push_back(job.graph.tensors[variable.tensor].name);
      add(variable);
    }
    found_.unused = map_.unused(names);
    for (const std::string& name : files.names())
      if (!used_.contains(name)) add_left_over(name);
  }

  void require_fit(bool partial) const {
    if (wanted_.empty()) throw EnvError(message() + "\nnothing of it fits this job");
    const bool fits = found_.missing.empty() && found_.extra.empty() && found_.reshaped.empty();
    if (!fits && !partial)
      throw EnvError(message() +
                     "\n--partial takes what fits; the run then needs --partial too, where tensors are missing");
  }

  std::vector<StoredTensor> tensors() const {
    std::vector<StoredTensor> tensors;
    for (const Wanted& w : wanted_)
      tensors.push_back({w.name, w.slot, DType::f32, w.shape, {{kWeightsName, whole_box(w.shape)}}});
    return tensors;
  }

  StoredFile write(const std::string& path, Disk& disk) {
    std::vector<SafetensorsEntry> entries;
    for (const Wanted& w : wanted_)
      entries.push_back(
          {.name = piece_key(w.name, w.slot, w.shape, whole_box(w.shape)), .type = StoredType::f32, .shape = w.shape});
    SafetensorsWriter writer(path, entries, {}, disk);
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const size_t entry = writer.index_of(entries[i].name);
      if (wanted_[i].mapped.order)
        write_ordered(writer, entry, wanted_[i]);
      else
        write_same(writer, entry, wanted_[i]);
    }
    const FileDigest digest = writer.finish();
    return {kWeightsName, digest.bytes, digest.xxh128};
  }

  ImportedWeights result() const {
    ImportedWeights result = found_;
    result.tensors = static_cast<int64_t>(wanted_.size());
    for (const std::string& name : used_) result.bytes += files_.find(name)->bytes();
    return result;
  }

 private:
  void add(const VariablePlan& variable) {
    const Tensor& tensor = job_.graph.tensors[variable.tensor];
    std::optional<MappedTensor> mapped = map_.of_ours(tensor.name, layers_);
    if (!mapped) {
      found_.missing.push_back(tensor.name + " (the map does not name it)");
      return;
    }
    const bool is_parameter = tensor.kind == TensorKind::parameter;
    Wanted wanted{tensor.name, std::string(is_parameter ? kWeightSlot : kStateSlot), variable.global_shape,
                  std::move(*mapped)};
    require_own_sources(wanted);
    if (!find_sources(wanted)) return;
    used_.insert(wanted.sources.begin(), wanted.sources.end());
    if (const std::string defect = shape_defect(wanted); !defect.empty())
      found_.reshaped.push_back(defect);
    else
      wanted_.push_back(std::move(wanted));
  }

  /// Same as in an export: two of ours cannot become one of theirs. A tied tensor takes its twin, which is reported.
  void require_own_sources(const Wanted& wanted) {
    for (const std::string& name : wanted.mapped.theirs)
      if (const auto [first, is_new] = takers_.emplace(name, wanted.name); !is_new)
        throw SpecError(
            wanted.mapped.pos, "tensors." + wanted.mapped.pattern,
            fmt::format("{} and {} both take '{}'", first->second, wanted.name, name),
            "if they are one tensor there, give each its own name and tie the names: tied: {name: the other}");
  }

  bool find_sources(Wanted& wanted) {
    std::vector<std::string> absent;
    for (const std::string& name : wanted.mapped.theirs) {
      const std::optional<std::string> twin = map_.tied_to(name);
      if (files_.find(name) != nullptr) {
        wanted.sources.push_back(name);
      } else if (twin && files_.find(*twin) != nullptr) {
        wanted.sources.push_back(*twin);
        found_.tied.push_back(
            fmt::format("{} takes {}: the file has no {}, which is tied to it", wanted.name, *twin, name));
      } else {
        absent.push_back(name);
      }
    }
    if (!absent.empty())
      found_.missing.push_back(absent == std::vector{wanted.name} ? wanted.name
                                                                  : fmt::format("{} ({})", join(absent), wanted.name));
    return absent.empty();
  }

  /// "" if the file's tensors make ours.
  std::string shape_defect(Wanted& wanted) const {
    std::vector<Shape> shapes;
    std::vector<std::string> texts;
    for (const std::string& name : wanted.sources) {
      shapes.push_back(files_.find(name)->shape);
      texts.push_back(fmt::format("{} {}", name, to_string(shapes.back())));
    }
    const std::string what =
        fmt::format("{} is {} in the job, {} in the file", wanted.name, to_string(wanted.shape), join(texts));
    if (!wanted.mapped.order) return shapes[0] == wanted.shape ? "" : what;
    try {
      wanted.sizes = wanted.mapped.order->sizes_from_theirs(shapes, wanted.mapped.sizes);
    } catch (const OrderFault& fault) {
      throw SpecError(wanted.mapped.pos, "tensors." + wanted.mapped.pattern,
                      fmt::format("the order does not fit: {}: {}", what, fault.message));
    }
    const Shape made = wanted.mapped.order->ours_shape(wanted.sizes);
    return made == wanted.shape ? "" : fmt::format("{}, which make {}", what, to_string(made));
  }

  void add_left_over(const std::string& name) {
    if (map_.ignores(name)) {
      found_.ignored.push_back(name);
      return;
    }
    const std::optional<std::string> twin = map_.tied_to(name);
    if (!twin || !used_.contains(*twin)) {
      found_.extra.push_back(name);
    } else if (are_equal(name, *twin)) {
      found_.tied.push_back(fmt::format("{} is {}", name, *twin));
    } else {
      found_.extra.push_back(fmt::format("{} (the job ties it to {}, but their numbers differ)", name, *twin));
    }
  }

  bool are_equal(const std::string& a, const std::string& b) const {
    const Shape& shape = files_.find(a)->shape;
    if (shape != files_.find(b)->shape) return false;
    std::vector<float> of_a, of_b;
    const int64_t count = num_elements(shape);
    for (int64_t first = 0; first < count; first += kImportedBlockElements) {
      const int64_t size = std::min(kImportedBlockElements, count - first);
      of_a.resize(static_cast<size_t>(size));
      of_b.resize(static_cast<size_t>(size));
      files_.read_f32(a, first, size, of_a.data());
      files_.read_f32(b, first, size, of_b.data());
      if (std::memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(float)) != 0) return false;
    }
    return true;
  }

  static std::span<const uint8_t> bytes_of(const std::vector<float>& values) {
    return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
  }

  void write_same(SafetensorsWriter& writer, size_t entry, const Wanted& wanted) const {
    std::vector<float> block;
    const int64_t count = num_elements(wanted.shape);
    for (int64_t first = 0; first < count; first += kImportedBlockElements) {
      block.resize(static_cast<size_t>(std::min(kImportedBlockElements, count - first)));
      files_.read_f32(wanted.sources[0], first, static_cast<int64_t>(block.size()), block.data());
      writer.write(entry, first * static_cast<int64_t>(sizeof(float)), bytes_of(block));
    }
  }

  void write_ordered(SafetensorsWriter& writer, size_t entry, const Wanted& wanted) const {
    std::vector<float> ours(static_cast<size_t>(num_elements(wanted.shape))), theirs;
    for (size_t part = 0; part < wanted.sources.size(); ++part) {
      const int64_t count = num_elements(files_.find(wanted.sources[part])->shape);
      theirs.resize(static_cast<size_t>(count));
      files_.read_f32(wanted.sources[part], 0, count, theirs.data());
      wanted.mapped.order->to_ours(wanted.sizes, part, reinterpret_cast<const std::byte*>(theirs.data()),
                                   reinterpret_cast<std::byte*>(ours.data()), sizeof(float));
    }
    writer.write(entry, 0, bytes_of(ours));
  }

  std::string message() const {
    std::string text = files_.path() + " is not of this job's network, as the map has it:";
    for (const auto& [head, names] :
         {std::pair{"the file has not", &found_.missing}, std::pair{"the job has not", &found_.extra},
          std::pair{"of another shape", &found_.reshaped}})
      if (!names->empty()) text += fmt::format("\n  {}:\n    {}", head, join(*names, "\n    "));
    return text;
  }

  const PlannedJob& job_;
  const WeightFiles& files_;
  NameMap map_;
  const LayerNumbers layers_;
  std::vector<Wanted> wanted_;
  std::set<std::string> used_;                 ///< theirs
  std::map<std::string, std::string> takers_;  ///< by theirs: the first of ours that the map gives it
  ImportedWeights found_;
};

StoredFile write_text(const std::string& folder, const std::string& name, const std::string& text, Disk& disk) {
  DiskFile file(folder + "/" + name, disk);
  file.write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.sync_and_close();
  return {name, static_cast<int64_t>(text.size()), digest_of(text)};
}

}  // namespace

ImportedWeights import_weights(const PlannedJob& job, const WeightFiles& files, NameMap map,
                               const std::string& directory, const ImportOptions& options, Disk& disk) {
  if (fs::exists(fs::symlink_status(directory)))
    throw EnvError(directory + " is there already; choose another folder with -o");
  Importer importer(job, files, std::move(map));
  importer.require_fit(options.partial);
  Manifest manifest;
  manifest.trainctl = options.version;
  manifest.name = job.spec.name;
  manifest.epoch = 1;
  manifest.seed = job.spec.seed;
  manifest.written = fmt::format(
      "{:%FT%TZ}", fmt::gmtime(std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now())));
  manifest.tensors = importer.tensors();

  const fs::path to = directory;
  const std::string part = directory + ".part";
  if (disk.mkdir(part) != 0) throw EnvError(fmt::format("{}: cannot be created: {}", part, std::strerror(errno)));
  try {
    manifest.files.push_back(importer.write(part + "/" + kWeightsName, disk));
    manifest.files.push_back(write_text(part, kImportedJobName, options.job, disk));
    write_text(part, std::string(kManifestName), to_json(manifest), disk);
    sync_directory(part, disk);
    if (disk.rename(part, directory) != 0)
      throw EnvError(fmt::format("{}: cannot be renamed to {}: {}", part, directory, std::strerror(errno)));
    sync_directory(to.has_parent_path() ? to.parent_path().string() : ".", disk);
  } catch (...) {
    try {
      delete_checkpoint(part, disk);
    } catch (const EnvError&) {
      // The first error says more.
    }
    throw;
  }
  return importer.result();
}

}  // namespace trainctl
