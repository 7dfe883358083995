// Images in folders: the name of a folder is the class of the images in it, at any depth.
#include "engine/train/data/sources/image_folder.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file_wait.h"
#include "engine/base/text.h"
#include "engine/train/data/sources/field_bytes.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/image_names.h"
#include "engine/train/data/sources/names_hint.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using FileId = std::pair<dev_t, ino_t>;

constexpr const char* kExpected =
    "the data set needs one folder per class with its images: photos/cat/1.jpg, "
    "photos/dog/7.png";

[[noreturn]] void fail_spec(const std::string& what, const std::string& hint = kExpected) {
  throw SpecError({}, "dataset.path", what, hint);
}

/// Content of one folder, sorted.
struct Listing {
  std::vector<std::string> images, folders;
  FileId id;
};

/// The images and folders in a folder, sorted, without hidden ones. Throws EnvError, SpecError.
Listing list_folder(const std::string& folder) {
  const FileWait wait(folder);
  const auto fail = [](const std::string& path) {
    throw EnvError(fmt::format("{}: cannot be listed: {}", path, std::strerror(errno)));
  };
  const std::unique_ptr<DIR, decltype([](DIR* open) { closedir(open); })> directory(opendir(folder.c_str()));
  struct stat status {};
  if (!directory || fstat(dirfd(directory.get()), &status) != 0) fail(folder);
  Listing listing{{}, {}, {status.st_dev, status.st_ino}};
  for (errno = 0; const dirent* entry = readdir(directory.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name.starts_with('.')) continue;
    bool is_folder = entry->d_type == DT_DIR, is_file = entry->d_type == DT_REG;
    if (!is_folder && !is_file) {  // a link, or a file system that does not say
      const bool is_there = fstatat(dirfd(directory.get()), entry->d_name, &status, 0) == 0;
      // A link to an image that is missing is a sample that cannot be read, as a damaged image is.
      const bool is_missing = !is_there && entry->d_type == DT_LNK && is_image_name(name, folder);
      if (!is_there && !is_missing) fail(fmt::format("{}/{}", folder, name));
      is_folder = is_there && S_ISDIR(status.st_mode);
      is_file = is_missing || S_ISREG(status.st_mode);
    }
    if (is_folder) {
      listing.folders.emplace_back(name);
    } else if (is_image_name(name, folder)) {
      if (!is_file) throw EnvError(fmt::format("{}/{}: is not a file, but a pipe, a socket or a device", folder, name));
      listing.images.emplace_back(name);
    }
  }
  if (errno != 0) fail(folder);
  std::sort(listing.images.begin(), listing.images.end());
  std::sort(listing.folders.begin(), listing.folders.end());
  return listing;
}

/// The images of a folder and of its subfolders, at any depth.
class Walk {
 public:
  explicit Walk(ImageNames& names) : names_(names) {}

  void visit(const std::string& folder, int32_t label) {
    const Listing listing = list_folder(folder);
    if (std::find(above_.begin(), above_.end(), listing.id) != above_.end())
      throw EnvError(folder + ": is a link to a folder that contains it");
    names_.begin_folder(folder, label);
    for (const std::string& image : listing.images) names_.add(image);
    above_.push_back(listing.id);
    for (const std::string& inner : listing.folders) visit(folder + "/" + inner, label);
    above_.pop_back();
  }

 private:
  ImageNames& names_;
  std::vector<FileId> above_;
};

struct FolderImages {
  ImageNames names;
  std::vector<std::string> classes;
};

int32_t class_number(const std::vector<std::string>& classes, const std::string& name, const std::string& path) {
  const auto found = std::find(classes.begin(), classes.end(), name);
  if (found == classes.end())
    fail_spec(
        fmt::format("'{}' has the class '{}', which is not one of the {} known classes", path, name, classes.size()),
        names_hint("classes", classes, name));
  return static_cast<int32_t>(found - classes.begin());
}

/// Folders called train, val or test are parts of a data set, each with a folder per class.
void refuse_splits(const std::string& folder, const std::vector<std::string>& folders) {
  static const std::set<std::string, std::less<>> kTraining = {"train", "training"},
                                                  kOthers = {"val",     "valid", "validation", "test",
                                                             "testing", "dev",   "eval"};
  std::string training, other;
  for (const std::string& name : folders) {
    if (kTraining.contains(name))
      training = name;
    else if (kOthers.contains(name))
      other = name;
    else
      return;
  }
  if (training.empty() || other.empty() || list_folder(folder + "/" + training).folders.empty()) return;
  fail_spec(fmt::format("'{}' contains {}, which are parts of a data set, not classes", folder, join(folders, " and ")),
            fmt::format("path: {}/{}, and validation: {{dataset: {{path: {}/{}}}}}", folder, training, folder, other));
}

/// The images in the class folders of a folder. `classes`: names of the classes, if they are known; otherwise the
/// folders are the classes.
FolderImages images_in(std::string folder, std::vector<std::string> classes) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  const Listing top = list_folder(folder);
  if (top.folders.empty() && top.images.empty())
    fail_spec(fmt::format("'{}' contains neither images nor folders", folder));
  if (top.folders.empty())
    fail_spec(fmt::format("'{}' contains {} image{} but no folders, so there are no classes", folder,
                          with_commas(static_cast<int64_t>(top.images.size())), top.images.size() == 1 ? "" : "s"));
  if (!top.images.empty())
    fail_spec(fmt::format("'{}/{}' is next to the class folders, so it has no class", folder, top.images[0]));
  const bool are_given = !classes.empty();
  if (!are_given) refuse_splits(folder, top.folders);
  if (!are_given) classes = top.folders;
  FolderImages images{{}, std::move(classes)};
  Walk walk(images.names);
  for (const std::string& name : top.folders) {
    const std::string path = folder + "/" + name;
    const int64_t before = images.names.size();
    walk.visit(path, class_number(images.classes, name, path));
    if (images.names.size() == before && !are_given)
      fail_spec(fmt::format("'{}' contains no images (.jpg .jpeg .png), so its class has none", path),
                "remove the folder, or add images to it");
  }
  return images;
}

FolderImages images_of(const std::vector<std::string>& patterns, std::vector<std::string> classes) {
  struct File {
    std::string folder, name;
    int32_t label = 0;
  };
  std::vector<File> files;
  std::set<std::string> seen;
  for (const std::string& file : list_files(patterns, "dataset.path")) {
    const fs::path path(file);
    const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
    if (!is_image_name(path.filename().string(), folder)) continue;
    seen.insert(fs::path(folder).filename().string());
    files.push_back({folder, path.filename().string()});
  }
  if (classes.empty()) classes.assign(seen.begin(), seen.end());
  for (size_t i = 0; i < files.size(); ++i) {
    const bool same_folder = i > 0 && files[i].folder == files[i - 1].folder;
    files[i].label = same_folder ? files[i - 1].label
                                 : class_number(classes, fs::path(files[i].folder).filename().string(),
                                                files[i].folder + "/" + files[i].name);
  }
  std::stable_sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.label < b.label; });
  FolderImages images{{}, std::move(classes)};
  for (size_t i = 0; i < files.size(); ++i) {
    if (i == 0 || files[i].folder != files[i - 1].folder) images.names.begin_folder(files[i].folder, files[i].label);
    images.names.add(files[i].name);
  }
  return images;
}

/// The images of folders and files without labels, all of class 0.
FolderImages images_without_classes(const std::vector<std::string>& patterns) {
  FolderImages images;
  Walk walk(images.names);
  std::error_code ignored;
  for (std::string pattern : patterns) {
    if (fs::is_directory(pattern, ignored)) {
      while (pattern.size() > 1 && pattern.ends_with('/')) pattern.pop_back();
      const int64_t before = images.names.size();
      walk.visit(pattern, 0);
      if (images.names.size() == before)
        fail_spec(fmt::format("'{}' contains no images (.jpg .jpeg .png)", pattern),
                  "name a folder or files of images");
      continue;
    }
    for (const std::string& file : list_files({pattern}, "dataset.path")) {
      const fs::path path(file);
      const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
      if (!is_image_name(path.filename().string(), folder))
        fail_spec(fmt::format("'{}' is not an image (.jpg .jpeg .png)", file), "name a folder or files of images");
      images.names.begin_folder(folder, 0);
      images.names.add(path.filename().string());
    }
  }
  return images;
}

class ImageFolder : public Source {
 public:
  ImageFolder(FolderImages images, ElementType label_type) : images_(std::move(images)) {
    fields_ = {{"image", Encoding::image, ElementType::u8, {}}, {"label", Encoding::array, label_type, {}}};
    images_.names.shrink_to_fit();
  }

  int64_t size() const override { return images_.names.size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    if (wanted[0]) {
      const InputFile file(images_.names.path(sample));
      if (file.bytes() == 0) throw EnvError(file.path() + ": is empty; expected a JPEG or PNG file");
      out[0].resize(static_cast<size_t>(file.bytes()));
      file.read(0, writable_bytes(out[0]));
    }
    if (wanted[1]) store_integer(images_.names.label(sample), fields_[1].type, out[1]);
  }
  std::string where(int64_t sample) const override { return images_.names.path(sample); }
  int64_t memory_bytes() const override { return images_.names.memory_bytes(); }
  const std::vector<std::string>& class_names() const override { return images_.classes; }

 private:
  FolderImages images_;
  std::vector<SourceField> fields_;
};

}  // namespace

std::unique_ptr<Source> open_image_folder(const ImageFolderOptions& options) {
  std::error_code ignored;
  const bool is_folder = options.paths.size() == 1 && fs::is_directory(options.paths[0], ignored);
  FolderImages images =
      is_folder ? images_in(options.paths[0], options.classes) : images_of(options.paths, options.classes);
  if (images.names.size() == 0) fail_spec(fmt::format("{} contains no images (.jpg .jpeg .png)", join(options.paths)));
  return std::make_unique<ImageFolder>(std::move(images), options.label_type);
}

std::unique_ptr<Source> open_images(const std::vector<std::string>& paths) {
  return std::make_unique<ImageFolder>(images_without_classes(paths), ElementType::i32);
}

}  // namespace trainctl
