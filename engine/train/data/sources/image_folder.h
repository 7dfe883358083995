// Images in folders: the name of a folder is the class of the images in it, at any depth.
//
//   photos/cat/1.jpg            class 0, cat
//   photos/cat/indoors/7.png    class 0, cat
//   photos/dog/1.jpeg           class 1, dog
//
// Order: class by class; in a folder first its images by name, then its folders by name. Fields: image, label.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct ImageFolderOptions {
  std::vector<std::string> paths;  ///< one folder of folders, or files and globs: there the class is the file's folder
  std::vector<std::string> classes;           ///< their numbers; empty: the names of the folders, sorted
  ElementType label_type = ElementType::i32;  ///< or i64
};

/// Lists all files: about 5 bytes and its name in memory for each. Throws SpecError (dataset.path) if the folders are
/// not as above; throws EnvError if one cannot be read.
std::unique_ptr<Source> open_image_folder(const ImageFolderOptions& options);

/// Images without classes: files, globs, and folders with all images in them at any depth. The label of each is 0.
/// Throws the same errors as open_image_folder.
std::unique_ptr<Source> open_images(const std::vector<std::string>& paths);

}  // namespace trainctl
