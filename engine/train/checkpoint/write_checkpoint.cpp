// Writes one checkpoint, from the ranks' images to the name that publishes it.
#include "engine/train/checkpoint/write_checkpoint.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>

#include "engine/base/error.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/checkpoint/link_file.h"
#include "engine/train/checkpoint/resume_checks.h"
#include "engine/train/checkpoint/table_slot.h"
#include "engine/train/checkpoint/write_whole.h"
#include "engine/train/data/order.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

/// Small enough that a slow disk shows progress.
constexpr size_t kWriteBytes = size_t{4} << 20;

std::span<const uint8_t> bytes_of(std::span<const std::byte> image) {
  return {reinterpret_cast<const uint8_t*>(image.data()), image.size()};
}

DType dtype_of(StoredType type) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32})
    if (stored_type(dtype) == type) return dtype;
  check(false, "a rank stores f32, bf16, f16 or i32");
  return {};
}

void require_finite(const SafetensorsHeader& header, std::span<const std::byte> image) {
  for (const SafetensorsEntry& entry : header.entries) {
    const auto values =
        image.subspan(static_cast<size_t>(header.data_at + entry.begin), static_cast<size_t>(entry.bytes()));
    if (first_not_finite(values, dtype_of(entry.type)))
      throw ImageNotFinite(entry.name +
                           " contains values that are not finite (with train.on_nan: warn, they are "
                           "saved too)");
  }
}

/// Collects the pieces of all ranks' files by tensor.
class Tensors {
 public:
  explicit Tensors(const PlannedJob& job) : states_(kept_state(job)) {
    for (const VariablePlan& v : job.plan.variables) shapes_[job.graph.tensors[v.tensor].name] = v.global_shape;
  }

  void add(const SafetensorsEntry& entry, const std::string& file) {
    const PieceName piece = parse_piece_key(entry.name);
    // Rows of a table are tensors of their own, whole in the file of their server.
    // Sums over rows or columns have shapes of their own, and one rank writes them as a whole.
    const bool is_whole = parse_table_slot(piece.slot) || !piece.box;
    const auto known = states_.find({piece.name, piece.slot});
    const Shape& shape = is_whole ? entry.shape : known != states_.end() ? known->second : shapes_.at(piece.name);
    const auto [at, is_new] = index_.try_emplace({piece.name, piece.slot}, all_.size());
    if (is_new) all_.push_back({piece.name, piece.slot, dtype_of(entry.type), shape, {}});
    all_[at->second].pieces.push_back({file, piece.box ? *piece.box : whole_box(shape)});
  }

  std::vector<StoredTensor> take() { return std::move(all_); }

 private:
  const std::map<StateKey, Shape> states_;
  std::map<std::string, Shape> shapes_;
  std::map<std::pair<std::string, std::string>, size_t> index_;
  std::vector<StoredTensor> all_;
};

/// Writes an image to a file, byte for byte.
StoredFile write_image(const std::string& folder, const std::string& name, std::span<const uint8_t> image,
                       std::atomic<uint64_t>& progress, Disk& disk) {
  DiskFile file(folder + "/" + name, disk, FileCache::bypassed);
  Digest digest;
  for (size_t at = 0; at < image.size(); at += kWriteBytes) {
    const std::span<const uint8_t> block = image.subspan(at, std::min(kWriteBytes, image.size() - at));
    digest.add(block);
    file.write(static_cast<int64_t>(at), block);
    progress.fetch_add(block.size(), std::memory_order_relaxed);
  }
  file.sync_and_close();
  return {name, static_cast<int64_t>(image.size()), digest.digits()};
}

/// Returns whether an image has only the rows that have changed. An image without any tensor counts as one, because a
/// server without any row has no image.
bool is_of_changes(const SafetensorsHeader& header) {
  if (header.entries.empty()) return true;
  const auto slot = parse_table_slot(parse_piece_key(header.entries.front().name).slot);
  return slot && slot->is_changed;
}

/// The file with all rows of a server, from an earlier save.
class EarlierRows {
 public:
  EarlierRows(const CheckpointDirectory& directory, const CheckpointFacts& facts)
      : directory_(directory), facts_(facts) {}

  void add(size_t server, const std::string& folder, Manifest& manifest, Disk& disk) {
    const std::string name = tables_file(server, false);
    if (!looked_) before_ = directory_.newest_complete();
    looked_ = true;
    const Manifest* all = before_ ? &before_->manifest : nullptr;
    const auto file = all == nullptr ? std::vector<StoredFile>::const_iterator{}
                                     : std::find_if(all->files.begin(), all->files.end(),
                                                    [&](const StoredFile& f) { return f.name == name; });
    if (all == nullptr || all->run != facts_.run || all->attempt != facts_.attempt || file == all->files.end())
      throw EarlierSaveGone(directory_.path() + " has no checkpoint of this run with all rows of server " +
                            std::to_string(server) + " any more; the next checkpoint will contain them");
    link_or_copy(before_->path + "/" + name, folder + "/" + name, disk);
    manifest.files.push_back(*file);
    for (const StoredTensor& tensor : all->tensors)
      if (tensor.pieces.front().file == name) rows_.push_back(tensor);
  }

  const std::vector<StoredTensor>& rows() const { return rows_; }

 private:
  const CheckpointDirectory& directory_;
  const CheckpointFacts& facts_;
  std::optional<CheckpointEntry> before_;
  bool looked_ = false;
  std::vector<StoredTensor> rows_;
};

std::string utc_now() {
  return fmt::format("{:%FT%TZ}",
                     fmt::gmtime(std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now())));
}

void set_validation(Manifest& m, const PlannedJob& job, const SaveBoard::Position& position) {
  m.metrics.clear();
  m.best.clear();
  m.plateau.reset();
  if (position.plateau.validations > 0) m.plateau = position.plateau;
  const std::vector<std::string> reported = job.spec.reported_metrics();
  for (size_t i = 0; i < reported.size(); ++i) {
    if (position.is_validated) m.metrics.emplace_back(reported[i], position.validation[i]);
    if (position.best[i].step > 0) m.best.emplace_back(reported[i], position.best[i]);
  }
}

/// The manifest of a checkpoint without its tensors and files.
Manifest manifest_of(const PlannedJob& job, const CheckpointFacts& facts) {
  const int64_t per_epoch = steps_per_epoch(job.spec.dataset, job.data.samples);
  Manifest m;
  m.trainctl = facts.version;
  m.name = job.spec.name;
  m.run = facts.run;
  m.attempt = facts.attempt;
  m.step = facts.step;
  m.epoch = facts.step / per_epoch + 1;
  m.epoch_step = facts.step % per_epoch;
  m.samples = facts.step * job.spec.dataset.batch;
  m.seed = job.spec.seed;
  m.order = order_text(job.spec.dataset, job.data, job.spec.seed, facts.step);
  m.classes = job.data.classes;
  m.train_share = job.spec.dataset.train_share;
  m.written = utc_now();
  m.lineage = facts.lineage;
  m.weights_only = facts.weights_only;
  m.base = facts.base;
  m.epoch_loss_sum = facts.position.loss_sum;
  const auto& sums = facts.position.metric_sums;
  m.epoch_metric_sums.assign(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(num_metrics(job)));
  m.is_finite = facts.position.is_finite;
  if (facts.position.loss_scale.scale > 0) m.loss_scale = facts.position.loss_scale;
  set_validation(m, job, facts.position);
  return m;
}

}  // namespace

std::string write_checkpoint(CheckpointDirectory& directory, const PlannedJob& job, const CheckpointFacts& facts,
                             const Images& images, std::atomic<uint64_t>& progress, Disk& disk) {
  Manifest manifest = manifest_of(job, facts);
  const std::string folder = directory.begin(facts.step, facts.attempt);
  const auto processes = static_cast<size_t>(job.spec.processes());
  try {
    Tensors tensors(job);
    EarlierRows earlier(directory, facts);
    for (size_t i = 0; i < images.size(); ++i) {
      if (images[i].empty()) continue;
      const std::span<const uint8_t> image = bytes_of(images[i]);
      const SafetensorsHeader header =
          parse_safetensors_header(image, static_cast<int64_t>(image.size()), fmt::format("the image of rank {}", i));
      if (job.spec.train.on_nan != OnNan::warn) require_finite(header, images[i]);
      const bool is_changed = i >= processes && is_of_changes(header);
      const std::string name =
          i < processes ? fmt::format("rank.{:04}.safetensors", i) : tables_file(i - processes, is_changed);
      if (is_changed) earlier.add(i - processes, folder, manifest, disk);
      if (is_changed && header.entries.empty()) continue;
      for (const SafetensorsEntry& entry : header.entries) tensors.add(entry, name);
      manifest.files.push_back(write_image(folder, name, image, progress, disk));
    }
    manifest.tensors = tensors.take();
    manifest.tensors.insert(manifest.tensors.end(), earlier.rows().begin(), earlier.rows().end());
    if (job.spec.train.saving().integrated)
      manifest.files.push_back(write_whole(manifest, folder, folder + "/model.safetensors", {"weight", "state"}, disk));
    return directory.commit(std::move(manifest), facts.job);
  } catch (...) {
    directory.abandon(facts.step, facts.attempt);
    throw;
  }
}

void add_validation(const std::string& checkpoint, const PlannedJob& job, const SaveBoard::Position& position,
                    Disk& disk) {
  Manifest manifest = read_manifest(checkpoint);
  set_validation(manifest, job, position);
  replace_synced(checkpoint + "/" + std::string(kManifestName), to_json(manifest), disk);
  sync_directory(checkpoint, disk);
}

}  // namespace trainctl
