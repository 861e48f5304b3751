/* empty.c: a shared object that is no plug-in: it lacks the entry point. */
int neb_no_plugin(void);
int neb_no_plugin(void)
{
    return 0;
}
