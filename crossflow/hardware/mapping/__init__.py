"""Device mapping and routing: parallel axes laid out on a physical network (DeepFlow, ACM TODAES 2024, Sec. 5.2)."""
