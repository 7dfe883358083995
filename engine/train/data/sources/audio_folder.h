// Folders of sounds, one folder per class, as image_folder has images: wav and flac files at any depth.
//
//   audio: samples   f32 [length], from -1 to 1; several channels are averaged
//   audio: mel       f32 [frames, mel_bins]: the logarithm of the power in each band of frequencies
//
// A clip that is longer than `length` samples is truncated, and zeros follow a shorter one. libsndfile decodes the
// files; it is opened with the first one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/mel.h"
#include "engine/train/data/source.h"

namespace trainctl {

struct AudioFolderOptions {
  std::vector<std::string> paths;  ///< one folder of folders, or files and globs: there the class is the file's folder
  std::vector<std::string> classes;  ///< their numbers; empty: the names of the folders, sorted
  bool has_labels = true;            ///< false: there is no field `label`, and folders are no classes
  int64_t length = 0;                ///< samples per clip
  int64_t sample_rate = 0;           ///< the rate of every file
  bool mel = false;
  MelOptions mels;  ///< for mel; its sample rate is the one above
};

/// Throws SpecError (dataset.path) if the folders are not as above, EnvError if one cannot be read or libsndfile is
/// missing.
std::unique_ptr<Source> open_audio_folder(const AudioFolderOptions& options);

}  // namespace trainctl
