// image_seeds FOLDER: writes small JPEG and PNG files of each kind that is decoded, for fuzz_image to start from.
#include <fstream>
#include <iostream>

#include "tests/train/image_files.h"

namespace {

using namespace trainctl;

void write(const std::string& path, const FileBytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: image_seeds FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  const Picture grey = make_picture(9, 17, 1), colour = make_picture(18, 20, 3), four = make_picture(8, 9, 4);
  write(folder + "/grey.jpg", write_jpeg(grey));
  write(folder + "/whole.jpg", write_jpeg(colour, {.horizontal = 1, .vertical = 1}));
  write(folder + "/half.jpg", write_jpeg(colour, {.horizontal = 2, .vertical = 1, .restart_rows = 1}));
  write(folder + "/quarter.jpg", write_jpeg(colour, {.orientation = 6}));
  write(folder + "/progressive.jpg",
        write_jpeg(colour, {.is_progressive = true, .orientation = 3, .is_big_endian = true}));
  write(folder + "/cmyk.jpg", write_jpeg(four));
  write(folder + "/ycck.jpg", write_jpeg(four, {.is_ycck = true}));
  write(folder + "/grey.png", write_png(grey));
  write(folder + "/colour.png", write_png(colour, {.is_interlaced = true}));
  write(folder + "/alpha.png", write_png(four, {.orientation = 5}));
  return 0;
}
