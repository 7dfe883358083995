// Folders of sounds, one folder per class, as image_folder has images: wav and flac files at any depth.
#include "engine/train/data/sources/audio_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/sound_file.h"
#include "engine/train/data/sources/field_bytes.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/names_hint.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

bool is_sound_name(const fs::path& path) {
  const std::string extension = lower_case(path.extension().string());
  return extension == ".wav" || extension == ".flac";
}

/// The sounds of a folder at any depth, sorted.
std::vector<std::string> sounds_below(const std::string& folder) {
  std::vector<std::string> sounds;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink))
      if (entry.is_regular_file() && is_sound_name(entry.path()) && !entry.path().filename().string().starts_with("."))
        sounds.push_back(entry.path().string());
  } catch (const fs::filesystem_error& error) {
    throw EnvError(folder + ": cannot be read: " + error.code().message());
  }
  std::sort(sounds.begin(), sounds.end());
  return sounds;
}

struct Sound {
  std::string path;
  int32_t label = 0;
};

class AudioFolder final : public Source {
 public:
  explicit AudioFolder(const AudioFolderOptions& options) : options_(options), class_names_(options.classes) {
    options_.mels.sample_rate = options.sample_rate;
    if (options.mel) filter_.emplace(options_.mels);
    if (options.mel && filter_->frames(options.length) == 0)
      throw SpecError(
          {}, "dataset.length",
          fmt::format("a clip of {} samples is shorter than a window of {}", options.length, options.mels.window),
          "increase length, or reduce window");
    std::map<std::string, std::vector<std::string>> by_class;
    for (const std::string& path : options.paths) add_path(path, by_class);
    if (by_class.empty())
      throw SpecError({}, "dataset.path", options.paths.front() + ": contains no wav or flac files",
                      options.has_labels ? "an audio_folder has a folder per class" : "");
    number(by_class);
    const Shape shape = options.mel ? Shape{filter_->frames(options.length), options.mels.bins} : Shape{options.length};
    fields_ = {{"audio", Encoding::array, ElementType::f32, shape}};
    if (options.has_labels) fields_.push_back({"label", Encoding::array, ElementType::i32, {}});
  }

  int64_t size() const override { return static_cast<int64_t>(sounds_.size()); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string where(int64_t sample) const override { return sounds_[static_cast<size_t>(sample)].path; }
  int64_t memory_bytes() const override {
    int64_t bytes = 0;
    for (const Sound& sound : sounds_) bytes += static_cast<int64_t>(sizeof(sound) + sound.path.capacity());
    return bytes;
  }

  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    const Sound& sound = sounds_[static_cast<size_t>(sample)];
    if (wanted.size() > 1 && wanted[1]) store_integer(sound.label, ElementType::i32, out[1]);
    if (!wanted[0]) return;
    std::vector<float> samples(static_cast<size_t>(options_.length));
    read_sound(sound.path, options_.sample_rate, samples);
    if (filter_) {
      std::vector<float> features(static_cast<size_t>(num_elements(fields_[0].shape)));
      filter_->apply(samples, features);
      samples = std::move(features);
    }
    store(std::span<const float>(samples), out[0]);
  }

 private:
  /// Adds the sound files of a path of dataset.path by class.
  void add_path(const std::string& path, std::map<std::string, std::vector<std::string>>& by_class) const {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) {
      for (const std::string& file : list_files({path}, "dataset.path")) {
        if (!is_sound_name(file))
          throw SpecError({}, "dataset.path", "'" + file + "' is not a wav or flac file",
                          "convert it, for example with ffmpeg");
        by_class[options_.has_labels ? fs::path(file).parent_path().filename().string() : ""].push_back(file);
      }
      return;
    }
    if (!options_.has_labels) {
      for (std::string& file : sounds_below(path)) by_class[""].push_back(std::move(file));
      return;
    }
    for (const auto& entry : fs::directory_iterator(path, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_directory() || name.starts_with(".")) continue;
      std::vector<std::string> sounds = sounds_below(entry.path().string());
      if (sounds.empty())
        throw SpecError({}, "dataset.path", entry.path().string() + ": contains no wav or flac files",
                        "each folder is a class; remove folders of other files");
      by_class[name] = std::move(sounds);
    }
  }

  void number(const std::map<std::string, std::vector<std::string>>& by_class) {
    if (options_.has_labels && class_names_.empty())
      for (const auto& [name, sounds] : by_class) class_names_.push_back(name);
    for (const auto& [name, sounds] : by_class) {
      const auto found = std::find(class_names_.begin(), class_names_.end(), name);
      if (options_.has_labels && found == class_names_.end())
        throw SpecError({}, "dataset.path", "the class '" + name + "' is not in the training set",
                        names_hint("classes", class_names_, name));
      for (const std::string& sound : sounds)
        sounds_.push_back({sound, options_.has_labels ? static_cast<int32_t>(found - class_names_.begin()) : 0});
    }
  }

  AudioFolderOptions options_;
  std::optional<MelFilter> filter_;
  std::vector<Sound> sounds_;
  std::vector<SourceField> fields_;
  std::vector<std::string> class_names_;
};

}  // namespace

std::unique_ptr<Source> open_audio_folder(const AudioFolderOptions& options) {
  return std::make_unique<AudioFolder>(options);
}

}  // namespace trainctl
