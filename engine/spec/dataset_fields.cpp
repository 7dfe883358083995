// The field table of `dataset`. Defaults are the initialisers of job_spec.h.
#include "engine/spec/dataset_fields.h"

#include <limits>

#include "engine/base/entry_types.h"
#include "engine/base/text.h"
#include "engine/spec/field_makers.h"

namespace trainctl {
namespace {

/// "mae and mse want f32, softmax_cross_entropy i32."
std::string label_types() {
  std::vector<std::string> numbers, classes;
  for (const EntryType& loss : loss_types()) (loss.labels_are_classes ? classes : numbers).push_back(loss.name);
  return in_words(numbers, " and ") + " want f32, " + in_words(classes, " and ") +
         " i32, or shares of classes that one_hot makes.";
}

/// Types that read files of samples, image by image or row by row, after `others`.
std::vector<std::string> with_sources(std::vector<std::string> others = {}) {
  for (const char* type : {"image_folder", "tar", "csv", "npy", "npz", "safetensors", "cifar10", "cifar100"})
    others.emplace_back(type);
  return others;
}

}  // namespace

const Section& dataset_section() {
  using D = DatasetSpec;
  static const Section section{
      "dataset",
      "Where samples come from.",
      {
          field<&D::type>(
              "type",
              "mnist reads IDX files (also .gz), image_folder JPEG and PNG files in a folder a class, tar "
              "shards of files whose common names make a sample, csv rows of text, npy, npz and safetensors "
              "arrays, cifar10 and cifar100 their binary files, tokens files of nanoGPT or llm.c, text the "
              "bytes of any files; random, constant and clicks generate samples.")
              .one_of({"mnist", "image_folder", "tar", "csv", "npy", "npz", "safetensors", "cifar10", "cifar100",
                       "tokens", "text", "random", "constant", "clicks"})
              .required(),
          list_field<&D::paths>("path", FieldKind::paths,
                                "mnist, cifar10, cifar100: the folder of the files. image_folder: the folder of the "
                                "classes' folders. npy: the folder of the files that `fields` names. All others: "
                                "files, by name or glob. Relative to the job file.")
              .for_type(with_sources({"mnist", "tokens", "text"}))
              .required(),
          field<&D::split>("split",
                           "mnist, cifar10, cifar100: which of the folder's files. The others: shares of the samples, "
                           "chosen by a hash, for the training and for `validation`.")
              .one_of({"train", "test"})
              .is(FieldKind::split)
              .for_type(with_sources({"mnist"})),
          make_field("fields", FieldKind::sample_fields,
                     "The fields of a sample: of columns (csv), extensions (tar), files (npy) or arrays (npz, "
                     "safetensors). tar: {image: [jpg, jpeg, png], label: cls} if omitted; npz and safetensors: "
                     "{data: data, label: label}.")
              .for_type({"tar", "csv", "npy", "npz", "safetensors"}),
          field<&D::weights>("weights", "One for each path: samples come from the paths in these proportions.")
              .above(0)
              .for_type({"image_folder", "tar", "csv", "npy", "npz", "safetensors"}),
          field<&D::channels>("channels", "Of an image once it is decoded: 3 (red, green, blue) or 1 (grey).")
              .at_least(1)
              .at_most(3)
              .for_type({"image_folder", "tar"}),
          field<&D::label_set>("label_set", "Which labels: 100 classes, or 20 groups of them.")
              .one_of({"fine", "coarse"})
              .for_type({"cifar100"}),
          field<&D::delimiter>("delimiter", "What separates columns: one character, or tab.").for_type({"csv"}),
          field<&D::header>("header", "The first line names the columns. false: they are numbered from 1.")
              .for_type({"csv"}),
          field<&D::length>("length", "Tokens of a sample; its label is the next token of each.")
              .for_type({"tokens", "text"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          unless_zero<&D::stride>("stride", "Tokens from the start of one sample to the next one's; length if omitted.")
              .for_type({"tokens", "text"})
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::token_dtype>("token_dtype", "Type of a token in files without the header of llm.c.")
              .one_of({"uint16", "int32"})
              .for_type({"tokens"}),
          make_field("transforms", FieldKind::transforms,
                     "Applied to each sample, in order: to the first field, or by field.")
              .for_type(with_sources({"mnist"})),
          field<&D::on_error>("on_error",
                              "What a sample that cannot be read does. skip: it is counted, and another one takes its "
                              "place.")
              .one_of({"stop", "skip"})
              .for_type(with_sources()),
          field<&D::cache>("cache",
                           "Where samples are kept once they are read. auto: in memory if all fit in a sixteenth of "
                           "it. disk: in a file of the folder TMPDIR. What is kept is a sample before its first random "
                           "transform.")
              .one_of({"auto", "memory", "disk", "none"})
              .for_type(with_sources({"mnist"})),
          field<&D::label_dtype>("label_dtype", "Type of a label: " + label_types())
              .one_of({"f32", "i32"})
              .for_type(with_sources({"mnist", "random", "constant"})),
          field<&D::batch>("batch", "Samples a step, over all ranks and micro-batches together.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::shuffle>("shuffle", "A new order each epoch, determined by seed and epoch."),
          unless_zero<&D::shuffle_block>("shuffle_block",
                                         "Shuffle in blocks of so many neighbours, so that reads stay local: 16 random "
                                         "blocks at a time, and the samples among them. Without it the whole set is "
                                         "shuffled.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::drop_last>("drop_last", "Drop the last samples if they do not fill a batch."),
          field<&D::repeat>("repeat", "Passes over the set per epoch.").at_least(1),
          field<&D::workers>("workers", "Threads of a rank that read samples; 0: as many as steps do not wait for.")
              .at_least(0)
              .at_most(kMostDataWorkers),
          field<&D::prefetch>("prefetch", "Batches that are read ahead; 0: as many as steps do not wait for.")
              .at_least(0)
              .at_most(kMostPrefetch),
          field<&D::autotune>("autotune",
                              "Change workers and prefetch while the job runs, where they are 0. false: one of each."),
          field<&D::max_memory>("max_memory",
                                "Memory of a rank's batches that are read ahead; 0: a sixteenth of the host's.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&D::shape>("shape", "Shape of one sample.")
              .for_type({"random", "constant", "clicks"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::dtype>("dtype", "Type of the data.").one_of({"f32", "i32"}).for_type({"random", "constant"}),
          field<&D::label_shape>("label_shape", "Shape of one label; [] is one number.")
              .for_type({"random", "constant"})
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::samples>("samples", "Samples in the set; 0: one batch.")
              .for_type({"random", "constant", "clicks"})
              .at_least(0),
          field<&D::classes>("classes", "Integers are drawn from 0 up to this, exclusive.")
              .for_type({"random"})
              .at_least(0)
              .at_most(std::numeric_limits<int32_t>::max()),
          field<&D::value>("value", "Every element of the data.").for_type({"constant"}),
          field<&D::label_value>("label_value", "Every element of the labels.").for_type({"constant"}),
          field<&D::ids>("ids", "Ids of a sample: the field `ids`, beside `data` and `label`.")
              .for_type({"clicks"})
              .at_least(1)
              .at_most(65'536),
          field<&D::vocab>("vocab", "Ids are below this.")
              .for_type({"clicks"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::zipf>("zipf", "Zipf's law: the r-th most frequent id comes 1 / r^zipf as often as the first.")
              .for_type({"clicks"})
              .above(0)
              .at_most(8),
      }};
  return section;
}

const Section& validation_dataset_section() {
  using D = DatasetSpec;
  static const Section section{
      "validation.dataset",
      "What differs from `dataset`. The order is that of the files, and each sample counts once.",
      {
          list_field<&D::paths>("path", FieldKind::paths, "Folder or files, of the type of `dataset`."),
          field<&D::split>("split",
                           "Of mnist, cifar10, cifar100: which of the folder's files; as `dataset` if omitted.")
              .one_of({"train", "test"}),
          unless_zero<&D::samples>("samples",
                                   "Of the types random, constant and clicks: as many; as `dataset` if omitted.")
              .at_least(1),
      }};
  return section;
}

}  // namespace trainctl
