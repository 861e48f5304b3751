/* npu.cpp: a torch device that stands in for an NPU's torch, for tests only.
 *
 * Vendors of accelerators add their device to torch under the key PrivateUse1. So does this file, with the least that a model needs to
 * train: memory, tensors without values, copies in both directions. Every other operation is computed on the host by torch's own
 * fallback, which goes through these copies.
 *
 * The memory is the host's, but nobody may touch it outside of a copy: its pages are without any right. A program that takes the
 * address of such a tensor for one of the host's ends with a segmentation fault, as it would with a real device.
 */
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace {

std::atomic<long> copies_in, copies_out; // copies to the device, and to the host

size_t pages(size_t bytes)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
}

void release(void *values)
{
    if (values == nullptr)
        return;
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char *block = static_cast<char *>(values) - page;
    mprotect(block, page, PROT_READ | PROT_WRITE);
    munmap(block, *reinterpret_cast<size_t *>(block));
}

/* A page with the size of the block, then the values. */
struct Memory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        const c10::Device here(c10::DeviceType::PrivateUse1, 0);
        if (bytes == 0)
            return {nullptr, nullptr, &release, here};
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), whole = page + pages(bytes);
        void *block = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        TORCH_CHECK(block != MAP_FAILED, "npu: no memory for ", bytes, " bytes");
        *static_cast<size_t *>(block) = whole;
        mprotect(block, whole, PROT_NONE);
        void *values = static_cast<char *>(block) + page;
        return {values, values, &release, here};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void *to, const void *from, std::size_t count) const override;
};

Memory memory;

/* The pages of a storage are open while this lives. */
struct Open {
    char *first;
    size_t bytes;

    explicit Open(const at::Tensor &t) : first(nullptr), bytes(0)
    {
        if (t.is_cpu() || t.storage().nbytes() == 0)
            return;
        first = static_cast<char *>(t.storage().mutable_data());
        bytes = pages(t.storage().nbytes());
        TORCH_CHECK(mprotect(first, bytes, PROT_READ | PROT_WRITE) == 0, "npu: mprotect");
    }
    ~Open()
    {
        if (first != nullptr)
            mprotect(first, bytes, PROT_NONE);
    }
    Open(const Open &) = delete;
    Open &operator=(const Open &) = delete;
};

void Memory::copy_data(void *to, const void *from, std::size_t count) const
{
    TORCH_CHECK(false, "npu: a copy of ", count, " bytes from ", from, " to ", to, " without a tensor");
}

/* The same memory as a tensor of the host, to be used between Open and its end. */
at::Tensor as_host(const at::Tensor &t)
{
    if (t.is_cpu())
        return t;
    return at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()).device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool)
{
    if (!from.is_cpu())
        copies_out++;
    if (!to.is_cpu())
        copies_in++;
    if (to.numel() == 0)
        return to;
    Open a(from);
    if (from.storage().data() == to.storage().data()) {
        as_host(to).copy_(as_host(from).clone());
        return to;
    }
    Open b(to);
    as_host(to).copy_(as_host(from).expand(to.sizes()));
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    to.resize_(from.sizes());
    return copy_from(from, to, false);
}

constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format)
{
    return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>)
{
    return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

/* Only a storage that is large enough is given another shape: nothing here needs a larger one. */
const at::Tensor &resize(const at::Tensor &t, c10::IntArrayRef size, std::optional<at::MemoryFormat>)
{
    auto *impl = t.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(size);
    const size_t bytes = static_cast<size_t>(t.numel()) * t.element_size();
    if (bytes > t.storage().nbytes()) {
        t.storage().set_data_ptr_noswap(memory.allocate(bytes));
        t.storage().set_nbytes(bytes);
    }
    return t;
}

at::Scalar local_scalar(const at::Tensor &t)
{
    return at::_local_scalar_dense(t.cpu());
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("resize_", &resize);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
    m.impl("_local_scalar_dense", &local_scalar);
    m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
    m.impl("view", TORCH_FN(at::native::view));
    m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

/* One device, one stream on which everything is done at once. */
struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
    c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
    c10::Device getDevice() const override { return {c10::DeviceType::PrivateUse1, 0}; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
    c10::Stream exchangeStream(c10::Stream) const override { return getStream(getDevice()); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    bool queryStream(const c10::Stream &) const override { return true; }
    void synchronizeStream(const c10::Stream &) const override {}
    void synchronizeDevice(const c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    void resizePrivateUse1Bytes(const c10::Storage &, size_t) const override { TORCH_CHECK(false, "npu: storages have one size"); }
};

Hooks hooks;
const bool registered = [] {
    at::SetAllocator(c10::DeviceType::PrivateUse1, &memory);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
}();

} // namespace

/* For Python: how many copies went to the device, and to the host. */
extern "C" long npu_copies_in(void)
{
    return copies_in;
}

extern "C" long npu_copies_out(void)
{
    return copies_out;
}
