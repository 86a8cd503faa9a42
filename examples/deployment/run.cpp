// Runs an exported program that calls an op of ours, without Python.
//
// run model.pt2 ./libswish.so input.bin expected.bin     prints the largest difference from what Python computed
#include <dlfcn.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

std::vector<char> read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "run model.pt2 libswish.so input.bin expected.bin\n";
    return 2;
  }
  // The library registers the op with torch's dispatcher. It has to be there before the package is loaded.
  if (!dlopen(arguments[2], RTLD_NOW)) {
    std::cerr << dlerror() << '\n';
    return 1;
  }
  c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader loader(arguments[1]);
  auto input = read_file(arguments[3]), expected = read_file(arguments[4]);
  auto x = torch::from_blob(input.data(), {static_cast<int64_t>(input.size() / (8 * sizeof(float))), 8}, torch::kFloat);
  auto wanted = torch::from_blob(expected.data(), {x.size(0), 4}, torch::kFloat);
  auto outputs = loader.run({x});
  double difference = (outputs[0] - wanted).abs().max().item<double>();
  std::cout << "largest difference " << difference << '\n';
  return difference <= 1e-6 ? 0 : 1;
}
