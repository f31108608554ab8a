from collections import Counter

from pykubelet.extension import CpuMachine, CpuRequest, Extension, MachineCpu


class SpreadCores(Extension):
    name, api = "spread-cores", "1.0"

    def place(self, request: CpuRequest, machine: CpuMachine) -> frozenset[int] | None:
        if request.numa_nodes is not None or request.whole_cores:
            return None
        free = sorted((cpu for cpu in machine.cpus if cpu.id in machine.free), key=lambda cpu: cpu.id)
        alone = _one_of_each_unused_core(machine, free)
        order = [*alone, *(cpu for cpu in free if cpu not in alone)]
        free_on = Counter(cpu.numa_node for cpu in free)
        for wanted in alone, free:  # a node with enough unused cores, else one with enough threads
            on = Counter(cpu.numa_node for cpu in wanted)
            fitting = [node for node, count in on.items() if count >= request.cpus]
            if fitting:
                best = min(fitting, key=lambda node: (free_on[node], node))
                order = [cpu for cpu in order if cpu.numa_node == best]
                break
        return frozenset(cpu.id for cpu in order[: request.cpus])


def _one_of_each_unused_core(machine: CpuMachine, free: list[MachineCpu]) -> list[MachineCpu]:
    threads, left = Counter(cpu.core for cpu in machine.cpus), Counter(cpu.core for cpu in free)
    found: dict[int, MachineCpu] = {}
    for cpu in free:
        if left[cpu.core] == threads[cpu.core]:
            found.setdefault(cpu.core, cpu)
    return list(found.values())
