// What a thread, a block, a cluster and the tensor cores of a Hopper GPU do, each by its instruction.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern __shared__ unsigned char shared_bytes[];

__device__ __forceinline__ u32 shared_base() { return (u32)__cvta_generic_to_shared(shared_bytes); }
__device__ __forceinline__ int thread_number() { return threadIdx.x; }
__device__ __forceinline__ int block_number() { return blockIdx.x; }
__device__ __forceinline__ void block_sync() { __syncthreads(); }
__device__ __forceinline__ void give_up() { __trap(); }

__device__ __forceinline__ u32 as_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float exchange_half(float value) { return __shfl_xor_sync(0xffffffffu, value, 16); }

__device__ __forceinline__ float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Copies of 16 bytes from device memory, past L1, which may hold what another CTA has written over; or of zeros.
__device__ __forceinline__ void copy_16(u32 to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ u32 load_2(u32 from) {
    u16 value;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(from) : "memory");
    return value;
}
__device__ __forceinline__ u32 load_4(u32 from) {
    u32 value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}
__device__ __forceinline__ uint2 load_8(u32 from) {
    uint2 value;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(from) : "memory");
    return value;
}
__device__ __forceinline__ uint4 load_16(u32 from) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}
__device__ __forceinline__ void store_2(u32 to, u32 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"((u16)value) : "memory");
}
__device__ __forceinline__ void store_4(u32 to, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_8(u32 to, uint2 value) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store_16(u32 to, const u32 (&value)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value[0]), "r"(value[1]), "r"(value[2]),
                 "r"(value[3])
                 : "memory");
}

// To device memory, in one piece: the compiler takes structures apart.
__device__ __forceinline__ void write_8(void* to, uint2 value) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void write_16(void* to, uint4 value) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

// Copies of whole blocks, by the engine that does so without threads. A barrier in shared memory counts their bytes.
__device__ __forceinline__ void barrier_init(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}
__device__ __forceinline__ bool barrier_passed(u32 barrier, u32 parity) {
    u32 passed;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
    return passed;
}
__device__ __forceinline__ void copy_block(u32 to, const void* from, u32 num_bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(num_bytes), "r"(barrier)
                 : "memory");
}
// To the same place in every CTA of the cluster; each one's own barrier counts.
__device__ __forceinline__ void copy_block_to_all(u32 to, const void* from, u32 num_bytes, u32 barrier, u32 ctas) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(num_bytes), "r"(barrier), "h"((u16)ctas)
        : "memory");
}

// The tensor cores read shared memory by another way than threads write it, and copies of blocks device memory.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Sums that products are added to while threads go on: between these two nobody touches them.
template <int LENGTH>
__device__ __forceinline__ void mma_hold(float (&sum)[LENGTH]) {
#pragma unroll
    for (int i = 0; i < LENGTH; i++) asm volatile("" : "+f"(sum[i])::"memory");
}
__device__ __forceinline__ void mma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ u64 load_acquire(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ void add_release(u64* to) {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(1ull) : "memory");
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Four sums into another CTA's shared memory; its barrier counts their bytes.
__device__ __forceinline__ void send(u32 to, u32 barrier, u32 rank, float one, float two, float three, float four) {
    u32 there, barrier_there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(to), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier_there) : "r"(barrier), "r"(rank));
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
        "f"(one), "f"(two), "f"(three), "f"(four), "r"(barrier_there)
        : "memory");
}
