// Lists the checkpoints of a directory: which are complete, and which are no longer needed.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/checkpoint/checkpoint_directory.h"
#include "engine/train/checkpoint/delete_checkpoint.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

/// Reads the manifest of the entry into `entry`. Throws EnvError, which says what is wrong with the manifest.
void read_entry(const CheckpointName& name, CheckpointEntry& entry) {
  const std::string path = entry.path + "/" + std::string(kManifestName), text = read_whole_file(path);
  entry.manifest = parse_manifest(text, path);
  entry.attempt = entry.manifest.attempt;
  if (entry.manifest.step != name.step || (name.attempt > 0 && entry.manifest.attempt != name.attempt))
    throw EnvError(fmt::format("{}: describes step {}, attempt {}, so it belongs to another directory", path,
                               entry.manifest.step, entry.manifest.attempt));
  if (const std::string defect = files_defect(entry.manifest, entry.path); !defect.empty())
    throw EnvError(entry.path + "/" + defect);
  entry.verified = is_recorded_verified(entry.path, checksum_of(text));
}

/// Returns false if it is not known whether the directory has a manifest.
bool has_no_manifest(const std::string& directory) {
  std::error_code error;
  return !std::filesystem::exists(directory + "/" + std::string(kManifestName), error) && !error;
}

}  // namespace

CheckpointEntry CheckpointDirectory::describe(const CheckpointName& name) const {
  CheckpointEntry entry{
      .path = path_ + "/" + name.text(), .name = name.text(), .step = name.step, .attempt = name.attempt};
  if (name.hidden || (name.attempt > 0 && has_no_manifest(entry.path))) {
    entry.unfinished = true;
    entry.being_written = is_latest(name.attempt);
    entry.problem =
        fmt::format("attempt {} {}", name.attempt,
                    entry.being_written ? "is writing it, or was interrupted while writing it" : "did not finish it");
    return entry;
  }
  try {
    read_entry(name, entry);
  } catch (const EnvError& error) {
    entry.problem = error.what();
  }
  return entry;
}

std::vector<CheckpointEntry> CheckpointDirectory::list() const {
  std::vector<CheckpointEntry> entries;
  for (const CheckpointName& name : checkpoint_names(path_)) entries.push_back(describe(name));
  std::vector<CheckpointEntry*> places;
  std::vector<CheckpointEntry> complete;
  for (CheckpointEntry& entry : entries) {
    if (!entry.complete())
      continue;  // The attempt of an incomplete checkpoint may not be known, so the checkpoint
                 // stays at the place of its step.
    places.push_back(&entry);
    complete.push_back(std::move(entry));
  }
  std::stable_sort(complete.begin(), complete.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::pair(a.attempt, a.step) > std::pair(b.attempt, b.step);
  });
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(complete[i]);
  return entries;
}

std::optional<CheckpointEntry> CheckpointDirectory::newest_complete(std::vector<CheckpointEntry>* passed_over) const {
  for (CheckpointEntry& entry : list()) {
    if (entry.complete()) return entry;
    if (passed_over != nullptr) passed_over->push_back(std::move(entry));
  }
  return {};
}

std::vector<CheckpointEntry> CheckpointDirectory::list_own() const {
  std::vector<CheckpointEntry> entries = list();
  if (owner_)
    std::erase_if(entries, [&](const CheckpointEntry& e) { return e.complete() && !owner_->owns(e.manifest); });
  return entries;
}

std::vector<std::string> CheckpointDirectory::retain(int keep, const std::set<int64_t>& also) {
  std::vector<std::string> gone, failures;
  std::set<int64_t> seen;  // steps of complete ones
  bool verified_one_is_kept = false;
  for (const CheckpointEntry& entry : list_own()) {
    // A damaged one stays: what cannot be read now may be readable later, and it is evidence.
    if (!entry.complete() && (seen.empty() || entry.being_written || !has_no_manifest(entry.path))) continue;
    if (entry.complete()) {
      const bool superseded = !seen.insert(entry.step).second;
      const bool wanted = static_cast<int>(seen.size()) <= std::max(keep, 1) || also.contains(entry.step);
      const bool last_verified = entry.verified && !verified_one_is_kept;
      if ((wanted && !superseded) || last_verified) {
        verified_one_is_kept |= entry.verified;
        continue;
      }
    }
    try {
      delete_checkpoint(entry.path, *disk_);
      gone.push_back(entry.path);
    } catch (const EnvError& error) {
      failures.push_back(error.what());
    }
  }
  if (!failures.empty()) throw EnvError(join(failures, "; "));
  return gone;
}

}  // namespace trainctl
