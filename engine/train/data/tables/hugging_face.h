// Folders written by the Hugging Face package `datasets`.
//
//   save_to_disk    state.json (the Arrow files), dataset_info.json, data-00000-of-00002.arrow …
//   a dictionary    dataset_dict.json and a folder per split
//   a repository    Parquet shards: train-00000-of-00002.parquet …
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// True if the folder has state.json or dataset_dict.json of save_to_disk.
bool is_hugging_face_folder(const std::string& folder);
/// The Arrow files of a data set, in order. Throws EnvError if the folder has several splits, or its files are not
/// there.
std::vector<std::string> hugging_face_files(const std::string& folder);
/// The Parquet files of a folder, sorted; empty if there are none. Throws EnvError if their names say that they are of
/// different splits.
std::vector<std::string> parquet_files_of(const std::string& folder);

}  // namespace trainctl
